"""Objectives, search and checks against plain enumeration, and against cases known by hand."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h2o_lab.theory import (
    Coverage,
    FacilityLocation,
    Modular,
    Transformed,
    all_subsets,
    cheapest_removals,
    greedy,
    one_out_one_in,
    optimum,
    random_triples,
    violations,
)
from h2o_lab.theory.summary import GUARANTEE
from tests.support.theory_cases import NAMES, causal, mask, members, plain_value, three

# Objectives


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
