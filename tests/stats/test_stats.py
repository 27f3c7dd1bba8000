"""Statistics of attention against brute force, on small inputs whose answers are known."""

import math

import numpy as np
import pytest
import torch

from h2o_lab.stats import fit
from h2o_lab.stats.measure import measure
from h2o_lab.stats.running import Reservoir, Running
from h2o_lab.stats.summary import (
    gini,
    heavy_hitters,
    mass_of_top,
    overlap,
    overlap_of_heads,
    overlap_of_layers,
    overlap_over_time,
)
from h2o_lab.stats.words import KINDS, kinds_of, neighbours, readable
from tests.support.models import character_tokenizer

HEADS, GROUP, LENGTH, SIZE = 2, 3, 150, 8
CHECKPOINTS = [40, 90, 150]
THRESHOLD = 0.05


@pytest.fixture(scope="module")
def drawn():
    """Queries, keys, and when each token is evicted: some never, each after it has been seen."""
    g = torch.Generator().manual_seed(0)
    q = 3 * torch.randn(HEADS * GROUP, LENGTH, SIZE, generator=g)
    k = torch.randn(HEADS, LENGTH, SIZE, generator=g)
    life = torch.randint(1, 200, (HEADS, LENGTH), generator=g)
    return q, k, (torch.arange(LENGTH) + life).int()


def brute_force(q, k, gone):
    """The same numbers, one query after the other, in float64."""
    received = np.zeros((len(CHECKPOINTS), HEADS, LENGTH))
    below, seen = np.zeros(HEADS), np.zeros(HEADS)
    sums = np.zeros((4, len(CHECKPOINTS), HEADS))
    for h in range(HEADS):
        for g in range(GROUP):
            for t in range(LENGTH):
                part = sum(t >= end for end in CHECKPOINTS)
                tokens = [j for j in range(t + 1) if gone is None or gone[h, j] > t]
                logits = (q[h * GROUP + g, t].double() @ k[h].double().T / math.sqrt(SIZE)).numpy()
                weights = np.exp(logits[: t + 1])
                p = np.exp(logits[tokens])
                p /= p.sum()
                received[part:, h, tokens] += p
                below[h] += (p < THRESHOLD * p.max()).sum()
                seen[h] += len(tokens)
                kept = weights[tokens].sum() / weights.sum()
                sums[:, part, h] += [-(p * np.log(p)).sum(), p[0], p[-1], kept]
    sums /= np.diff([0, *CHECKPOINTS])[None, :, None] * GROUP
    return received, below, seen, sums


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("evicting", [False, True])
def test_a_layer_is_measured_as_by_hand(drawn, evicting, fused):
    q, k, gone = drawn
    gone = gone if evicting else None
    found = measure(q, k, SIZE**-0.5, gone, CHECKPOINTS, THRESHOLD, fused)
    received, below, seen, sums = brute_force(q, k, gone)
    assert np.allclose(found.received, received, atol=1e-4)
    assert found.below.tolist() == below.tolist()
    assert found.seen.tolist() == seen.tolist()
    for name, expected in zip(("entropy", "oldest", "newest", "retained"), sums, strict=True):
        assert np.allclose(getattr(found, name), expected, atol=1e-5), name
    for place, end in enumerate(CHECKPOINTS):
        for h in range(HEADS):
            held = [j for j in range(end) if gone is None or gone[h, j] > end - 1]
            assert found.held[place, h] == len(held)
            assert found.age[place, h] == pytest.approx(np.mean([end - 1 - j for j in held]))
    assert (found.retained < 1).any() == evicting
    fair = np.zeros((HEADS, LENGTH))
    for h in range(HEADS):
        for t in range(LENGTH):
            tokens = [j for j in range(t + 1) if gone is None or gone[h, j] > t]
            fair[h, tokens] += GROUP / len(tokens)
    assert np.allclose(found.fair, fair, rtol=1e-4)


def test_half_precision_is_measured_in_float32(drawn):
    q, k, _ = drawn
    half = measure(q.bfloat16(), k.bfloat16(), SIZE**-0.5, None, CHECKPOINTS, THRESHOLD)
    same = measure(q.bfloat16().float(), k.bfloat16().float(), SIZE**-0.5, None, CHECKPOINTS, THRESHOLD)
    assert torch.equal(half.received, same.received)


# --- of a text


def test_gini_of_equal_shares_is_0_and_of_one_that_has_all_nearly_1():
    assert gini(torch.ones(3, 50)).tolist() == pytest.approx([0, 0, 0], abs=1e-6)
    assert gini(torch.eye(50)[0]).item() == pytest.approx(49 / 50)
    x = torch.rand(20, generator=torch.Generator().manual_seed(1))
    differences = (x[:, None] - x[None]).abs().sum() / (2 * 20 * x.sum())
    assert gini(x).item() == pytest.approx(differences.item(), rel=1e-5)


def test_mass_of_the_top_tokens():
    received = torch.tensor([1.0, 5.0, 2.0, 2.0])
    shares = torch.tensor([0.0, 0.25, 0.5, 0.625, 1.0])
    assert mass_of_top(received, shares).tolist() == pytest.approx([0, 0.5, 0.7, 0.8, 1])


def test_heavy_hitters_are_counted_as_decimals_say():
    assert [int(heavy_hitters(torch.rand(100), share).sum()) for share in (0.29, 0.57, 0.58)] == [29, 57, 58]


def test_heavy_hitters_are_a_share_rounded_down_and_one_at_least():
    received = torch.tensor([[3.0, 1.0, 2.0, 0.0, 5.0]])
    assert heavy_hitters(received, 0.59).tolist() == [[True, False, False, False, True]]
    assert heavy_hitters(received, 0.1).sum() == 1


def test_overlap_over_time_compares_what_was_known_with_what_is_known_later():
    early, late = [4.0, 3.0, 1.0, 0.0, 0.0, 0.0], [4.0, 3.0, 5.0, 9.0, 0.0, 0.0]
    received = torch.tensor([[early], [late], [late]])
    table = overlap_over_time(received, [4, 5, 6], 0.5)[..., 0]
    # of the first four tokens, 0 and 1 are heavy at first; later 2 and 3 are
    assert table[0].tolist() == [1, 0, 0]
    assert table[1, 1:].tolist() == [1, 1]
    assert torch.isnan(table[2, :2]).all()


def test_overlap_of_heads_and_of_layers():
    a, b, c = (torch.tensor(x, dtype=torch.bool) for x in ([1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1]))
    assert overlap(a, b) == 0.5
    assert overlap_of_heads(
        torch.stack([torch.stack([a, b, c]), torch.stack([a, a, a])])
    ).tolist() == pytest.approx([(0.5 + 0 + 0.5) / 3, 1])
    assert torch.isnan(overlap_of_heads(a[None, None])).all()
    assert overlap_of_layers(torch.stack([a, b, c])).tolist() == [[1, 0.5, 0], [0.5, 1, 0.5], [0, 0.5, 1]]


# --- power laws


@pytest.mark.parametrize("alpha", [2.0, 2.5, 3.5])
def test_the_exponent_of_a_power_law_is_recovered(alpha):
    draws = np.random.default_rng(0).random(2000)
    found = fit((1 - draws) ** (-1 / (alpha - 1)))
    assert found["alpha"] == pytest.approx(alpha, abs=3 * found["alpha_stderr"])
    assert found["alpha_stderr"] < 0.2
    assert found["verdict"] == "power law"


@pytest.mark.parametrize("seed", range(6))
def test_a_log_normal_sample_is_not_called_a_power_law(seed):
    found = fit(np.random.default_rng(seed).lognormal(0, 1, 2000))
    assert found["verdict"] in ("lognormal", "undecided", "power-law tail")
    assert found["tail"] < 1000


def test_an_exponential_sample_is_not_called_a_power_law():
    found = fit(np.random.default_rng(0).exponential(1, 2000) + 1)
    assert found["verdict"] in ("exponential", "lognormal", "undecided")


def test_too_few_values_are_not_fitted():
    assert fit(np.array([1.0, 2.0, 0.0])) == {"values": 2, "verdict": "too few"}
    assert fit(np.tile([1.0, 2.0], 50)) == {"values": 100, "verdict": "too few"}


# --- over texts


def test_mean_and_standard_error_over_texts():
    values = torch.rand(7, 2, 3, generator=torch.Generator().manual_seed(0)).double()
    running = Running()
    running.add(values[0])
    assert np.isnan(running.stderr).all()
    for value in values[1:]:
        running.add(value)
    assert np.allclose(running.mean, values.mean(dim=0))
    assert np.allclose(running.stderr, values.std(dim=0) / math.sqrt(7))


def test_a_reservoir_holds_a_uniform_sample_whatever_the_order():
    counts = np.zeros(40)
    for seed in range(400):
        reservoir = Reservoir(1, 10, seed)
        for start in range(0, 40, 8):
            reservoir.add(np.arange(start, start + 8, dtype=np.float32)[None])
        counts[reservoir.values[0].astype(int)] += 1
        assert reservoir.values.shape == (1, 10)
    assert counts.mean() == 100
    assert abs(counts - 100).max() < 5 * math.sqrt(400 * 0.25 * 0.75)


# --- tokens


def test_kinds_of_tokens():
    tokens = ["Ġ", "ĠThe", "Ġdog", "s", "Ġran", ".", "ĠIt", "Ċ", "ĊĊ", "Now", ",", "Ġthen", "Ġ(", "$"]
    kinds = [KINDS[kind] for kind in kinds_of([token.replace("Ġ", " ").replace("Ċ", "\n") for token in tokens])]
    assert kinds == [
        "first token",
        *["word start", "word start", "word part", "word start", "punctuation", "sentence start"],
        *["space", "space", "sentence start", "punctuation", "word start", "punctuation", "punctuation"],
    ]


def test_parts_of_letters_are_no_punctuation():
    assert [KINDS[kind] for kind in kinds_of(["x", "\ufffd", " “", "—"])[1:]] == ["word part", *["punctuation"] * 2]


def test_tokens_are_read_as_the_tokenizer_has_them(real_model):
    _, sentencepiece = real_model("stories260K")
    ids = sentencepiece("Once upon\n“x", add_special_tokens=False).input_ids
    texts = [readable(sentencepiece, token) for token in ids]
    assert texts[0].startswith(" ")
    assert "\n" in texts
    assert "".join(texts).replace("\ufffd", "").strip().startswith("Once upon")
    bytewise = character_tokenizer()
    assert [readable(bytewise, token) for token in bytewise("a b\n").input_ids] == ["a", " ", "b", "\n"]


def test_neighbours_are_different_tokens_within_the_window():
    assert neighbours([5, 6, 5, 7, 7, 7], 1).tolist() == [1, 1, 2, 1, 0, 0]
    assert neighbours([5, 6, 5, 7, 7, 7], 2).tolist() == [1, 2, 2, 2, 1, 0]
