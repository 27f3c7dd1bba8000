"""The theory of the paper: every measurement against plain enumeration, and against cases known by hand."""

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import random_model
from hypothesis import given, settings
from hypothesis import strategies as st

from h2o_lab.results import load, load_samples
from h2o_lab.theory import (
    Coverage,
    FacilityLocation,
    Modular,
    Transformed,
    accumulated,
    all_subsets,
    attention_maps,
    candidates,
    cheapest_removals,
    greedy,
    h2o_process,
    largest_fall,
    one_out_one_in,
    optimum,
    process_value,
    random_triples,
    step_changes,
    top_sets,
    violations,
)
from h2o_lab.theory.measure import Settings, Step, measure_choices, measure_steps, objectives
from h2o_lab.theory.summary import GUARANTEE, per_doubling, per_layer, ratio_distribution

ROOT = Path(__file__).resolve().parents[1]


def members(subset) -> set[int]:
    return set(np.flatnonzero(subset).tolist())


def mask(n: int, *tokens: int) -> np.ndarray:
    return np.isin(np.arange(n), tokens)


def causal(heads: int, length: int, seed: int) -> np.ndarray:
    """Random causal attention, float64 [heads, length, length], far from uniform."""
    weight = np.exp(3 * np.random.default_rng(seed).normal(size=(heads, length, length))) * np.tri(length)
    return weight / weight.sum(axis=-1, keepdims=True)


# Objectives


def plain_value(name: str, columns: np.ndarray, kept: set[int]) -> float:
    """The three objectives, from their definitions."""
    queries, tokens = columns.shape
    if name == "modular":
        return sum(columns[q, j] for q in range(queries) for j in kept)
    if name == "coverage":
        return sum(min(0.3, sum(columns[q, j] for j in kept)) for q in range(queries))

    def cosine(a, b):
        return float(a @ b / np.sqrt((a @ a) * (b @ b)))

    return sum(max((cosine(columns[:, i], columns[:, j]) for j in kept), default=0.0) for i in range(tokens))


def three(columns: np.ndarray) -> dict:
    return {
        "modular": Modular(columns.sum(axis=0)),
        "facility_location": FacilityLocation.of_columns(columns),
        "coverage": Coverage(columns, 0.3),
    }


NAMES = ("modular", "facility_location", "coverage")


@pytest.mark.parametrize("name", NAMES)
def test_objectives_are_what_their_definitions_say(name):
    columns = causal(1, 9, seed=1)[0][:, [0, 2, 3, 5, 8]]
    subsets = np.concatenate([all_subsets(5, k) for k in range(6)])
    expected = [plain_value(name, columns, members(subset)) for subset in subsets]
    np.testing.assert_allclose(three(columns)[name].values(subsets), expected, atol=1e-12)


def test_a_token_without_attention_resembles_nothing():
    similarity = FacilityLocation.of_columns(np.array([[1.0, 0.0], [1.0, 0.0]])).similarity
    np.testing.assert_allclose(similarity, [[1, 0], [0, 0]])


def test_objectives_refuse_what_makes_them_not_monotone():
    for bad in (-0.1, np.nan):
        with pytest.raises(ValueError, match="0 or more"):
            FacilityLocation(np.array([[bad]]))
        with pytest.raises(ValueError, match="0 or more"):
            Coverage(np.array([[bad]]), 0.5)
    with pytest.raises(ValueError, match="0 or more"):
        Coverage(np.array([[0.1]]), -1.0)


# The function h


@st.composite
def non_decreasing(draw, top: int):
    """Values h(0), ..., h(top) of a non-decreasing function on whole numbers, exact; and whether it is strict."""
    steps = draw(st.lists(st.integers(0, 9), min_size=top, max_size=top))
    shape = draw(st.sampled_from(["any", "steps", "linear pieces", "concave", "convex", "constant", "strict"]))
    if shape == "steps":
        steps = [step if step == 9 else 0 for step in steps]
    elif shape == "linear pieces":
        steps = [steps[i - i % 7] for i in range(top)]
    elif shape in ("concave", "convex"):
        steps = sorted(steps, reverse=shape == "concave")
    elif shape == "constant":
        steps = [0] * top
    elif shape == "strict":
        steps = [step + 1 for step in steps]
    return np.cumsum([draw(st.integers(-50, 50)), *steps]).astype(np.float64), min(steps, default=1) > 0


@settings(max_examples=300, deadline=None)
@given(st.data(), st.lists(st.integers(0, 8), min_size=2, max_size=8))
def test_h_changes_no_eviction(data, scores):
    o = np.array(scores, dtype=np.float64)
    table, strict = data.draw(non_decreasing(sum(scores)))
    everything, lightest = np.ones(len(o), dtype=bool), o == o.min()
    shaped = Transformed(Modular(o), lambda z: table[z.astype(int)])
    cheapest = cheapest_removals(shaped, everything)
    assert (lightest <= cheapest).all()
    assert not strict or (lightest == cheapest).all()
    assert np.where(cheapest, o, np.inf).argmin() == o.argmin()  # the tie rule of the docstring
    k = data.draw(st.integers(1, len(o)))
    heaviest = np.argsort(-o, kind="stable")[:k]
    assert shaped.values(mask(len(o), *heaviest)[None])[0] == optimum(shaped, k).best


@pytest.mark.parametrize("h", [np.sqrt, lambda z: np.sqrt(z + 1), np.log1p, np.square, np.exp])
def test_the_h_of_the_paper_holds_the_same_cache_as_the_plain_sum(h):
    for seed in range(20):
        scores = np.random.default_rng(seed).gamma(0.3, size=12)
        plain, shaped = Modular(scores), Transformed(Modular(scores), h)
        for k in (1, 3, 7):
            assert members(one_out_one_in(shaped, k)) == members(one_out_one_in(plain, k))
            assert members(greedy(shaped, k)) == members(greedy(plain, k)) == members(optimum(plain, k).subset)


def test_a_decreasing_h_and_an_objective_with_redundancy_do_change_evictions():
    scores = np.array([5.0, 4.0, 1.0])
    held = np.ones(3, dtype=bool)
    assert members(cheapest_removals(Modular(scores), held)) == {2}
    assert members(cheapest_removals(Transformed(Modular(scores), np.negative), held)) == {0}
    twins = np.array([[0.5, 0.4, 0.0]] * 10 + [[0.0, 0.0, 0.1]] * 10)  # 0 and 1 serve the same queries
    assert members(cheapest_removals(Modular(twins.sum(axis=0)), held)) == {2}
    assert members(cheapest_removals(FacilityLocation.of_columns(twins), held)) == {0, 1}  # they tie: equal losses


def test_a_newcomer_with_score_zero_always_goes():
    assert members(one_out_one_in(Modular(np.array([0.2, 0.1, 0.0, 0.0, 0.0])), 2)) == {0, 1}


# Search


def test_all_subsets_are_the_combinations_in_order():
    found = [tuple(sorted(members(subset))) for subset in all_subsets(6, 3)]
    assert found == list(combinations(range(6), 3))
    assert all_subsets(16, 8).shape == (12870, 16)
    for n, k, sentence in ((4, 5, "k must be 0 to 4"), (40, 20, "at most 1000000")):
        with pytest.raises(ValueError, match=sentence):
            all_subsets(n, k)


@pytest.mark.parametrize("k", [1, 3, 6, 7])
@pytest.mark.parametrize("name", NAMES)
def test_search_equals_plain_loops(name, k):
    for seed in range(4):
        columns = causal(1, 12, seed)[0][:, [0, 1, 3, 4, 6, 8, 9]]
        objective = three(columns)[name]
        every = [plain_value(name, columns, set(subset)) for subset in combinations(range(7), k)]
        found = optimum(objective, k)
        assert plain_value(name, columns, members(found.subset)) == pytest.approx(max(every))
        assert (found.best, found.mean, found.worst) == pytest.approx((max(every), np.mean(every), min(every)))

        def best(sets, columns=columns):
            values = [plain_value(name, columns, each) for each in sets]
            return next(each for each, value in zip(sets, values, strict=True) if value > max(values) - 1e-9)

        kept: set[int] = set()
        for _ in range(k):
            kept = best([kept | {j} for j in range(7) if j not in kept])
        assert members(greedy(objective, k)) == kept
        held = set(range(k))
        for newcomer in range(k, 7):
            full = held | {newcomer}
            held = best([full - {v} for v in sorted(full)])
        assert members(one_out_one_in(objective, k)) == held


def cover(*sets: set[int]) -> Coverage:
    """Each set as the queries that a token serves in full."""
    return Coverage(
        np.array([[q in served for served in sets] for q in sorted(set.union(*sets))], dtype=float), 1.0
    )


def test_greedy_where_it_is_known_to_miss_the_optimum():
    objective = cover({1, 2, 3, 4}, {1, 2, 5}, {3, 4, 6})
    assert optimum(objective, 2).best == 6
    assert members(optimum(objective, 2).subset) == {1, 2}
    assert objective.values(greedy(objective, 2)[None])[0] == 5


def test_one_out_one_in_ends_below_the_guarantee_on_a_fixed_submodular_function():
    """Four blocks of 20 queries, held first; one newcomer serves 19 of each, the others 19 new ones each."""
    blocks = [set(range(20 * i, 20 * i + 20)) for i in range(4)]
    broad = {q for block in blocks for q in sorted(block)[:19]}
    fresh = [set(range(100 + 19 * i, 119 + 19 * i)) for i in range(3)]
    objective = cover(*blocks, broad, *fresh)
    found = violations(objective, random_triples(8, 2000, np.random.default_rng(0)))
    assert (found.monotone, found.submodular) == (0, 0)
    best = optimum(objective, 4).best
    assert best == 133
    assert objective.values(one_out_one_in(objective, 4)[None])[0] == 80 < GUARANTEE * best
    assert objective.values(greedy(objective, 4)[None])[0] > GUARANTEE * best


# Checks


def test_triples_are_nested_and_of_every_size():
    small, large, token = random_triples(5, 3000, np.random.default_rng(0))
    assert (small <= large).all()
    assert not (large & token).any()
    assert (token.sum(axis=1) == 1).all()
    assert {(int(a), int(b)) for a, b in zip(small.sum(axis=1), large.sum(axis=1), strict=True)} == {
        (a, b) for b in range(5) for a in range(b + 1)
    }
    assert (token.mean(axis=0) > 0.15).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_objectives_are_monotone_and_submodular(name):
    columns = causal(1, 40, seed=3)[0][:, ::4]
    found = violations(three(columns)[name], random_triples(10, 5000, np.random.default_rng(1)))
    assert found == (5000, 0, 0)


def test_the_checks_can_fail():
    base, rng = Modular(np.arange(1.0, 9.0)), np.random.default_rng(2)
    triples = random_triples(8, 1000, rng)
    strictly = int((triples.small != triples.large).any(axis=1).sum())
    assert violations(Transformed(base, np.square), triples) == (1000, 0, strictly)  # supermodular
    assert violations(Transformed(base, np.sqrt), triples) == (1000, 0, 0)
    assert violations(Transformed(base, np.negative), triples) == (1000, 1000, 0)
    cut = violations(Transformed(base, lambda z: z * (36 - z)), triples)  # submodular, falls beyond half
    above, gain = (part @ base.scores for part in triples[1:])
    assert cut.monotone == (2 * above + gain > 36).sum() > 0  # h(z + x) < h(z) where 2 z + x > 36
    assert cut.submodular == 0


# Attention maps


def test_attention_maps_are_causal_and_leave_the_model_as_it_was(tiny_model):
    before = tiny_model.config._attn_implementation
    ids = torch.randint(97, (12,), generator=torch.Generator().manual_seed(0))
    maps = attention_maps(tiny_model, ids)
    assert maps.shape == (3, 6, 12, 12)
    np.testing.assert_allclose(maps.sum(axis=-1), 1, atol=1e-5)
    assert not np.triu(maps, 1).any()
    assert tiny_model.config._attn_implementation == before != "eager"
    with pytest.raises(IndexError):
        attention_maps(tiny_model, ids + 97)
    assert tiny_model.config._attn_implementation == before


def test_candidates_are_the_heaviest_and_some_others():
    attention = causal(1, 30, seed=4)[0]
    heavy = set(np.argsort(-attention.sum(axis=0))[:5].tolist())
    draws = [candidates(attention, 5, 6, np.random.default_rng(seed)).tolist() for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    for found in draws:
        assert found == sorted(set(found))
        assert len(found) == 11
        assert heavy < set(found)
    with pytest.raises(ValueError, match="31 candidates"):
        candidates(attention, 5, 26, np.random.default_rng(0))


# Dynamics


def test_dynamics_of_a_sequence_worked_out_by_hand():
    scores = np.array([[[4.0, 0, 0, 0], [4, 2, 0, 0], [4, 2, 1, 0], [3, 2, 4, 1]]])
    found = step_changes(scores, 2)
    # Sets after steps 1, 2, 3: best {0, 1} = 6, {0, 1} = 6, {0, 2} = 7.
    np.testing.assert_allclose(found.fall, [[0, 1 / 6]])  # {0, 1}: 6 to 5
    np.testing.assert_allclose(found.rise, [[0, 1 / 2]])  # {1, 2}: 3 to 6
    np.testing.assert_allclose(found.gamma, [[0, 0]])
    np.testing.assert_allclose(found.stale, [[0, 1 - 5 / 7]])
    np.testing.assert_allclose(found.overlap, [[1, 1 / 2]])
    backwards = np.array([[[1.0, 0, 0], [2.0, 2, 0], [1, 1, 1]]])
    np.testing.assert_allclose(step_changes(backwards, 2).gamma, [[1 / 2]])  # 4 to 2


def test_tokens_still_to_come_are_in_no_set():
    scores = accumulated(causal(2, 20, seed=9))
    for found, clean in zip(
        step_changes(scores + np.triu(np.full((20, 20), 99.0), 1), 5), step_changes(scores, 5), strict=True
    ):
        np.testing.assert_array_equal(found, clean)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.booleans())
def test_largest_fall_equals_enumeration(seed, k, holes):
    rng = np.random.default_rng(seed)
    before, after = rng.gamma(0.4, size=(2, 3, 7))
    if holes:
        before[rng.random((3, 7)) < 0.4] = 0.0
        after[rng.random((3, 7)) < 0.4] = 0.0
    allowed = mask(7, 0, 1, 2, 4, 6)
    expected = [
        max(
            max(0.0, 1 - a[list(kept)].sum() / b[list(kept)].sum()) if b[list(kept)].sum() > 0 else 0.0
            for kept in combinations((0, 1, 2, 4, 6), k)
        )
        for a, b in zip(after, before, strict=True)
    ]
    np.testing.assert_allclose(largest_fall(before, after, allowed, k), expected, atol=1e-12)


def test_accumulated_attention_never_falls_whatever_the_model_does():
    attention = causal(3, 30, seed=5)
    whole, latest = step_changes(accumulated(attention), 4), step_changes(attention, 4)
    assert not whole.fall.any()
    assert not whole.gamma.any()
    assert whole.rise.max() > 0.3
    assert latest.fall.max() > 0.9
    shared = accumulated(attention) / np.arange(1, 31)[:, None]  # per query: 1 / (t + 2) at most
    assert (step_changes(shared, 4).fall <= 1 / np.arange(5, 31) + 1e-12).all()


@pytest.mark.parametrize(("k", "sentence"), [(0, "1 to 3"), (4, "1 to 3")])
def test_step_changes_refuse(k, sentence):
    with pytest.raises(ValueError, match=sentence):
        step_changes(np.zeros((1, 4, 4)), k)
    with pytest.raises(ValueError, match="0 or more"):
        step_changes(np.full((1, 4, 4), -1.0), 2)


# The process


def plain_process(q: np.ndarray, keys: np.ndarray, k: int, recent: int) -> tuple[list[list[int]], dict[int, float]]:
    """The step rule from queries and keys: what is held at each step, and the scores after the last."""
    held: list[int] = []
    scores: dict[int, float] = {}
    history = []
    for t in range(len(q)):
        if len(held) == k:
            gone = min((s for s in held if s <= t - recent), key=lambda s: (scores[s], s))
            held.remove(gone)
            del scores[gone]
        held.append(t)
        weight = np.exp(keys[held] @ q[t])
        for s, w in zip(held, weight / weight.sum(), strict=True):
            scores[s] = scores.get(s, 0.0) + w
        history.append(sorted(held))
    return history, scores


@pytest.mark.parametrize(("k", "recent"), [(2, 1), (5, 1), (6, 3), (4, 4)])
def test_the_process_is_the_contract(k, recent):
    q, keys = np.random.default_rng(6).normal(size=(2, 25, 4)) * 2
    logits = np.where(np.tri(25, dtype=bool), q @ keys.T, -np.inf)
    attention = np.exp(logits - logits.max(axis=-1, keepdims=True))
    attention /= attention.sum(axis=-1, keepdims=True)
    history, scores = plain_process(q, keys, k, recent)
    found = h2o_process(np.stack([attention] * 2), k, recent)
    assert [sorted(members(held)) for held in found.held[1]] == history
    np.testing.assert_allclose(found.scores[1, -1, sorted(scores)], [scores[s] for s in sorted(scores)])
    value = process_value(np.stack([attention] * 2), found, k)
    assert value.ratio.shape == value.optimism.shape == (2, 25 - k)
    full = attention.sum(axis=0)
    assert value.ratio[0, -1] == pytest.approx(full[history[-1]].sum() / np.sort(full)[-k:].sum())
    assert value.optimism[0, -1] == pytest.approx(1 - full[history[-1]].sum() / sum(scores.values()))
    assert (value.optimism >= 0).all()
    with pytest.raises(ValueError, match=f"1 to {k}"):
        h2o_process(attention[None], k, k + 1)


def test_no_share_of_the_optimum_is_sure_however_slow_the_dynamics():
    """Token 1 is lightest when it is evicted; from step 10 on it gets all attention."""
    attention = np.zeros((1, 200, 200))
    for step in range(200):
        attention[0, step, 1 if step >= 10 else 0] = 1.0
    process = h2o_process(attention, 3, 1)
    assert not process.held[0, -1, 1]
    changes = step_changes(accumulated(attention), 3)
    assert not changes.fall.any()
    assert not changes.gamma.any()
    assert changes.rise[0, 100:].max() < 0.02
    ratio = process_value(attention, process, 3).ratio[0]
    assert ratio[0] == 1
    assert ratio[-1] == pytest.approx(10 / 200)
    assert ratio[-1] < GUARANTEE


# Measurements and summaries


def test_the_measurements_of_a_layer_are_those_of_its_parts():
    attention = causal(2, 40, seed=19)  # here one-out-one-in and greedy differ
    asked = Settings(sizes=(3,), heavy=5, spread=4, cap=0.4, triples=20, caches=(6,))
    columns = attention[1][:, candidates(attention[1], 5, 4, np.random.default_rng(3))]
    found = measure_choices(attention[1], asked, np.random.default_rng(3))
    for sample, objective in zip(found.samples, objectives(columns, 0.4).values(), strict=True):
        best = optimum(objective, 3)
        sets = [greedy(objective, 3), one_out_one_in(objective, 3), top_sets(columns.sum(axis=0), 3)]
        shares = [*objective.values(np.stack(sets)), best.mean, best.worst]
        ways = ("greedy", "one_out_one_in", "heaviest", "average_set", "worst_set")
        assert [sample[way] for way in ways] == [share / best.best for share in shares]
    assert [sample["one_out_one_in"] != sample["greedy"] for sample in found.samples] == [False, True, True]
    assert {name: counts.checked for name, counts in found.found.items()} == dict.fromkeys(NAMES, 20)

    steps = measure_steps(attention, asked)
    assert len(steps) == 2 * 5 + 2 * 2
    for of, scores in (("accumulated", accumulated(attention)), ("latest", attention)):
        np.testing.assert_array_equal(steps[Step(of, 6, "stale")], step_changes(scores, 6).stale)
    for of, recent in (("h2o", 3), ("h2_only", 1)):
        value = process_value(attention, h2o_process(attention, 6, recent), 6)
        np.testing.assert_array_equal(steps[Step(of, 6, "ratio")], value.ratio)


def test_distributions():
    found = ratio_distribution(np.array([0.5, GUARANTEE, 1.0, 1 - 1e-12]))
    assert (found["min"], found["max"], found["below_guarantee"], found["optimal"]) == (0.5, 1.0, 0.25, 0.5)
    assert found["mean"] == pytest.approx((2.5 + GUARANTEE) / 4)
    assert per_layer(np.arange(6.0).reshape(2, 3))["p50"] == [1, 4]
    parts = per_doubling(np.arange(3.0, 14.0)[None], first=3)
    assert [(part["from"], part["to"]) for part in parts] == [(3, 5), (6, 11), (12, 13)]
    assert [(part["min"], part["max"]) for part in parts] == [(3, 5), (6, 11), (12, 13)]


def test_top_sets():
    assert top_sets(np.array([[1.0, 3, 2], [5, 4, 6]]), 2).tolist() == [[False, True, True], [True, False, True]]


# The experiment


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """A tiny LLaMA in `llama`, and three long texts and a short one in `data`."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("theory")
    random_model("llama").save_pretrained(folder / "llama")
    words = {"<end>": 0} | {f"w{i}": i for i in range(1, 97)}
    tokenizer = Tokenizer(models.WordLevel(words, "<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder / "llama")
    texts = [
        " ".join(f"w{1 + (7 * i + j * j) % 96}" for j in range(length)) for i, length in enumerate((30, 9, 40, 30))
    ]
    (folder / "data" / "xsum").mkdir(parents=True)
    rows = "".join(json.dumps({"document": text, "summary": "none"}) + "\n" for text in texts)
    (folder / "data" / "xsum" / "validation.jsonl").write_text(rows)
    return folder


@pytest.fixture
def main(monkeypatch, workplace):
    """`experiments.theory.main` on the tiny model; returns the folder of results."""
    monkeypatch.syspath_prepend(str(ROOT))
    from experiments import theory

    monkeypatch.setattr(theory.log, "set_up", lambda: None)  # global, and not to be undone
    threads = torch.get_num_threads()

    def run(name: str, *more: str) -> Path:
        places = {"--model-path": "llama", "--data-dir": "data", "--results-dir": name}
        given = [word for key, value in places.items() for word in (key, str(workplace / value))]
        small = {"--length": 24, "--sizes": 3, "--heavy": 4, "--spread": 3, "--triples": 50, "--caches": 4}
        given += [str(word) for pair in small.items() for word in pair]
        theory.main([*given, *more])
        return workplace / name

    yield run
    torch.set_num_threads(threads)


def test_the_experiment_records_its_result(main, capsys):
    folder = main("results", "--windows", "2", "--sizes", "1", "3")
    frame, samples = load(folder), load_samples(folder)
    assert len(frame) == 1
    cell = frame.iloc[0]
    assert (cell["status"], cell["task"], cell["model"], cell["seed"]) == ("finished", "theory", "llama", 0)
    assert cell["violations.coverage.checked"] == 2 * 3 * 6 * 50
    assert cell["violations.facility_location.submodular"] == 0
    assert cell["ratio.modular.k3.greedy.min"] == pytest.approx(1)
    assert cell["steps.accumulated.k4.fall.all.max"] == 0
    assert len(cell["steps.h2o.k4.ratio.per_layer.p50"]) == 3
    assert len(samples) == cell["samples"] == 2 * 3 * 6 * 3 * 2
    assert set(samples["objective"]) == set(NAMES)
    assert samples["greedy"].min() == cell["least_greedy_ratio"] > GUARANTEE
    assert samples["greedy"].max() < 1 + 1e-9
    assert (samples["worst_set"] <= samples["average_set"] + 1e-9).all()
    assert samples.groupby(["objective", "k"])["average_set"].std().min() > 0
    [record] = folder.rglob("result.json")
    assert json.loads(record.read_text())["environment"]["versions"]["torch"] == torch.__version__
    shown = capsys.readouterr().out
    assert "facility_location" in shown
    assert "violations in 5400 random triples" in shown


def test_the_same_seed_gives_the_same_samples(main):
    def lines(name: str, seed: int) -> str:
        [file] = main(name, "--windows", "1", "--seed", str(seed)).rglob("samples.jsonl")
        return file.read_text()

    assert lines("first", 1) == lines("second", 1) != lines("third", 2)


def test_every_head_draws_candidates_of_its_own(main, monkeypatch):
    from h2o_lab.theory import measure

    drawn, draw = [], measure.candidates

    def kept(*arguments):
        drawn.append(tuple(draw(*arguments).tolist()))
        return np.array(drawn[-1])

    monkeypatch.setattr(measure, "candidates", kept)
    monkeypatch.setattr("experiments.theory.attention_maps", lambda model, ids: np.stack([causal(6, 24, 1)] * 3))
    main("heads", "--windows", "2", "--heavy", "0", "--spread", "6")
    assert len(drawn) == 2 * 3 * 6
    assert len(set(drawn)) > 30


def test_the_experiment_says_what_is_wrong(main, workplace, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr("h2o_lab.log.complain", said.append)
    cases = {
        "only 3 articles have 24 tokens": ("--windows", "4"),
        "--sizes must be 1 to 7": ("--sizes", "8"),
        "--caches must be 2 to 23": ("--caches", "24"),
        "--length must be 7 or more": ("--length", "6"),
        "there is no split test": ("--split", "test"),
        "more than 1000000 subsets": ("--heavy", "22", "--spread", "2", "--sizes", "12"),
    }
    for sentence, arguments in cases.items():
        with pytest.raises(SystemExit) as stopped:
            main(f"failed {arguments[0]}", *arguments)
        assert stopped.value.code == 2
        assert sentence in said.pop()
    failed = load(workplace / "failed --windows").iloc[0]
    assert (failed["status"], failed["task"]) == ("failed", "theory")
    assert "only 3 articles" in failed["error"]
