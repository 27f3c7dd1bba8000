"""Is a set function monotone and submodular? Counted over random sets, with a tolerance for rounding."""

from typing import NamedTuple

import numpy as np

from h2o_lab.theory.objectives import Bools, Objective

TOLERANCE = 1e-9
"""Of |F(all tokens)|: float64 sums of a few hundred terms err by about 1e-14 of it."""


class Triples(NamedTuple):
    """M random cases of small set S within large set T, and a token x outside of T."""

    small: Bools
    """bool [M, n]."""
    large: Bools
    """bool [M, n]."""
    token: Bools
    """bool [M, n], one True per row."""


class Violations(NamedTuple):
    """How often, of `checked` triples, a property failed by more than the tolerance."""

    checked: int
    monotone: int
    """F(S + x) < F(S) or F(T + x) < F(T)."""
    submodular: int
    """F(S + x) - F(S) < F(T + x) - F(T): the gain grew."""


def random_triples(n: int, count: int, rng: np.random.Generator) -> Triples:
    """`count` triples over n >= 1 tokens; sizes |S| <= |T| are those of two uniform draws from 0..n-1."""
    order = rng.permuted(np.tile(np.arange(n), (count, 1)), axis=1)
    small, large = np.sort(rng.integers(0, n, size=(2, count)), axis=0)
    return Triples(order < small[:, None], order < large[:, None], order == n - 1)


def violations(objective: Objective, triples: Triples, tolerance: float = TOLERANCE) -> Violations:
    """Count the triples on which `objective` is not monotone, or not submodular.

    Submodular means F(S + x) - F(S) >= F(T + x) - F(T) for all S within T and x outside of T (section 4.2).
    None found is evidence, not proof. Where F(all tokens) is 0 the tolerance is absolute.
    """
    small, large, token = triples
    slack = tolerance * (abs(float(objective.values(np.ones((1, objective.size), dtype=bool))[0])) or 1.0)
    gain_small = objective.values(small | token) - objective.values(small)
    gain_large = objective.values(large | token) - objective.values(large)
    falls = (gain_small < -slack) | (gain_large < -slack)
    return Violations(len(token), int(falls.sum()), int((gain_small < gain_large - slack).sum()))
