"""Set functions over the tokens of one head: what keeping a set of cache entries is worth.

Sets are rows of a bool matrix [M, n] over n tokens, so that any number of them is valued in one call.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Objective(ABC):
    """A set function F on n tokens with F(empty set) = 0, unless `Transformed` says otherwise."""

    @property
    @abstractmethod
    def size(self) -> int:
        """n, the number of tokens."""

    @abstractmethod
    def values(self, subsets: Bools) -> Floats:
        """F of each row of `subsets`, bool [M, n]: float64 [M]."""


@dataclass(frozen=True, eq=False)
class Modular(Objective):
    """F(S) = sum of o_s over S: the paper's score function with h(z) = z (section 4.2, Algorithm 1)."""

    scores: Floats
    """float64 [n], the accumulated attention o of each token, in attention summed over queries."""

    @property
    def size(self) -> int:
        return len(self.scores)

    def values(self, subsets: Bools) -> Floats:
        return np.asarray(subsets @ self.scores, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Transformed(Objective):
    """h(F(S)): with `Modular` inside, the score function of the paper's Algorithm 2 (Appendix D)."""

    base: Objective
    h: Callable[[Floats], Floats]
    """A function of one variable, applied to float64 [M]."""

    @property
    def size(self) -> int:
        return self.base.size

    def values(self, subsets: Bools) -> Floats:
        return self.h(self.base.values(subsets))


@dataclass(frozen=True, eq=False)
class FacilityLocation(Objective):
    """F(S) = sum over targets i of max_{j in S} similarity[i, j]: monotone and submodular.

    A second token that resembles one already kept adds nothing: redundancy, which a function of the sum of
    scores cannot see (Appendix D.7 argues with it).

    Raises:
        ValueError: a similarity is negative or not a number.
    """

    similarity: Floats
    """float64 [targets, n], not negative, so that F(empty set) = 0 and F is monotone."""

    def __post_init__(self) -> None:
        if not (self.similarity >= 0).all():
            raise ValueError("similarities must be 0 or more, and there is one that is not.")

    @classmethod
    def of_columns(cls, columns: Floats) -> "FacilityLocation":
        """Cosine similarity of attention columns among themselves; targets are the tokens.

        Each target counts alike, however much attention it received, and a token serves itself in full: k tokens
        are worth k at least, of n at most, so that a share of the optimum says less the larger k / n is.

        Args:
            columns: float64 [T, n], column j being the attention that token j received from each of T queries.
                A column of zeros resembles nothing, itself included.
        """
        norms = np.linalg.norm(columns, axis=0)
        unit = np.divide(columns, norms, out=np.zeros_like(columns), where=norms > 0)
        return cls(unit.T @ unit)

    @property
    def size(self) -> int:
        return self.similarity.shape[1]

    def values(self, subsets: Bools) -> Floats:
        best = np.zeros((len(subsets), len(self.similarity)))
        for token, column in enumerate(self.similarity.T):
            np.maximum(best, np.outer(subsets[:, token], column), out=best)
        return best.sum(axis=1)


@dataclass(frozen=True, eq=False)
class Coverage(Objective):
    """F(S) = sum over queries q of min(cap, sum_{j in S} p[q, j]): saturated coverage, monotone and submodular.

    A query that keeps the share `cap` of its attention counts as served; more for the same query is worth
    nothing. At cap = 1 this is `Modular`, since a row sums to 1 at most.

    Raises:
        ValueError: `cap` or an entry of `rows` is negative or not a number.
    """

    rows: Floats
    """float64 [T, n], the attention p of each of T queries to the n tokens."""
    cap: float
    """The share of a query's attention that is enough."""

    def __post_init__(self) -> None:
        if not (self.rows >= 0).all() or not self.cap >= 0:
            raise ValueError("attention and cap must be 0 or more, and one of them is not.")

    @property
    def size(self) -> int:
        return self.rows.shape[1]

    def values(self, subsets: Bools) -> Floats:
        kept = self.rows @ subsets.T.astype(np.float64)
        return np.asarray(np.minimum(kept, self.cap, out=kept).sum(axis=0), dtype=np.float64)
