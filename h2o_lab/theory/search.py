"""Choosing k of n tokens: by brute force, greedily, and one out, one in as a cache does."""

import math
from functools import lru_cache
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from h2o_lab.theory.objectives import Bools, Floats, Objective

MOST_SUBSETS = 1_000_000
"""Brute force refuses more."""
TIE = 1e-12
"""Values this close, relative to the largest, are equal: in `FacilityLocation`, removing either of two tokens that
resemble each other most costs the same, and rounding must not choose between them."""


class Exhaustive(NamedTuple):
    """Every k-subset of one objective, valued."""

    subset: Bools
    """bool [n], a best one; the first in lexicographic order among equals."""
    best: float
    mean: float
    """The value of a uniformly random k-subset, on average."""
    worst: float


@lru_cache(maxsize=16)
def all_subsets(n: int, k: int) -> Bools:
    """All C(n, k) subsets of size k, in lexicographic order: bool [C(n, k), n], not to be written to.

    Raises:
        ValueError: k is not in 0..n, or there are more than `MOST_SUBSETS`.
    """
    _check_size(n, k)
    count = math.comb(n, k)
    if count > MOST_SUBSETS:
        raise ValueError(f"{n} tokens have {count} subsets of size {k}: at most {MOST_SUBSETS} can be searched.")
    members = np.fromiter(chain.from_iterable(combinations(range(n), k)), dtype=np.int64, count=count * k)
    subsets = np.zeros((count, n), dtype=bool)
    np.put_along_axis(subsets, members.reshape(count, k), True, axis=1)
    subsets.flags.writeable = False
    return subsets


def optimum(objective: Objective, k: int) -> Exhaustive:
    """The best k-subset by brute force.

    Raises:
        ValueError: as `all_subsets`.
    """
    subsets = all_subsets(objective.size, k)
    values = objective.values(subsets)
    best = int(values.argmax())
    return Exhaustive(subsets[best], float(values[best]), float(values.mean()), float(values.min()))


def greedy(objective: Objective, k: int) -> Bools:
    """k times the token that adds most, ties by the smallest index: bool [n].

    For monotone submodular objectives its value is at least 1 - (1 - 1/k)^k > 1 - 1/e of the optimum (Nemhauser,
    Wolsey and Fisher 1978; the paper's Corollary D.18). It sees all n tokens at once, which a cache does not.

    Raises:
        ValueError: k is not in 0..n.
    """
    _check_size(objective.size, k)
    kept = np.zeros(objective.size, dtype=bool)
    for _ in range(k):
        values = objective.values(kept | np.eye(objective.size, dtype=bool))
        kept[np.flatnonzero(~kept)[_largest(values[~kept])[0]]] = True
    return kept


def cheapest_removals(objective: Objective, held: Bools) -> Bools:
    """The v in `held`, bool [n], with the largest F(held without v): bool [n], several where they tie within `TIE`.

    This is argmax_{v in G} F(G without v), the eviction step of Algorithms 1 and 2.
    """
    members = np.flatnonzero(held)
    without = np.repeat(held[None], len(members), axis=0)
    without[np.arange(len(members)), members] = False
    values = objective.values(without)
    cheapest = np.zeros_like(held)
    cheapest[members[_largest(values)]] = True
    return cheapest


def one_out_one_in(objective: Objective, k: int) -> Bools:
    """The paper's own dynamic on a fixed objective: bool [n], what is held after the last token.

    The first k tokens are held; then each token comes in, and of these k + 1 the one whose removal costs least
    goes, be it the newcomer (Definition 2.1, Algorithms 1 and 2); ties by the smallest index, the oldest.

    Raises:
        ValueError: k is not in 0..n.
    """
    _check_size(objective.size, k)
    held = np.arange(objective.size) < k
    for newcomer in range(k, objective.size):
        held[newcomer] = True
        held[cheapest_removals(objective, held).argmax()] = False
    return held


def _largest(values: Floats) -> NDArray[np.int64]:
    """Indices of the largest of `values`, ascending, with those that tie."""
    top = values.max()
    return np.flatnonzero(values >= top - TIE * abs(top))


def _check_size(n: int, k: int) -> None:
    if not 0 <= k <= n:
        raise ValueError(f"k must be 0 to {n}, the number of tokens, and is {k}.")
