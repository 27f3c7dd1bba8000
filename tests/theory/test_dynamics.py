"""Attention maps, dynamics, the process and what is summarised of them, against plain loops and by hand."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h2o_lab.theory import (
    accumulated,
    attention_maps,
    candidates,
    greedy,
    h2o_process,
    largest_fall,
    one_out_one_in,
    optimum,
    process_value,
    step_changes,
    top_sets,
)
from h2o_lab.theory.measure import Settings, Step, measure_choices, measure_steps, objectives
from h2o_lab.theory.summary import GUARANTEE, per_doubling, per_layer, ratio_distribution
from tests.support.theory_cases import NAMES, causal, mask, members

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
