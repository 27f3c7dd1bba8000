"""Heavy hitters with and without a recent window."""

from dataclasses import dataclass
from typing import ClassVar

from h2o_lab.policies.base import Policy
from h2o_lab.policies.priority import Priority


@dataclass(frozen=True, kw_only=True)
class H2O(Policy):
    """Keeps half of k for recent tokens, the rest for those with the most accumulated attention.

    Algorithm 1 of the paper, with its eviction moved from the end of a step to the start of the next, so that
    no query ever sees more than k entries.
    """

    name: ClassVar[str] = "h2o"
    source: ClassVar[str] = "H2O, Algorithm 1"
    neighbours: ClassVar[str] = "The policy that the others vary."

    recent_fraction: float | None = 0.5
    priority: Priority = Priority.ACCUMULATED


@dataclass(frozen=True, kw_only=True)
class H2Only(Policy):
    """Keeps the tokens with the most accumulated attention; only the current token is safe."""

    name: ClassVar[str] = "h2_only"
    source: ClassVar[str] = "H2O, Table 9"
    neighbours: ClassVar[str] = "h2o without its recent window: new tokens have had no time to gather attention."

    recent_tokens: int | None = 1
    priority: Priority = Priority.ACCUMULATED


@dataclass(frozen=True, kw_only=True)
class H2OMean(Policy):
    """Keeps half of k for recent tokens, the rest for those with the most attention per query that saw them."""

    name: ClassVar[str] = "h2o_mean"
    source: ClassVar[str] = "H2O, Appendix B.2"
    neighbours: ClassVar[str] = "h2o without its bias for old tokens, which have had more queries."

    recent_fraction: float | None = 0.5
    priority: Priority = Priority.MEAN
