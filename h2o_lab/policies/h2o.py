"""Heavy hitters with and without a recent window."""

from dataclasses import dataclass
from typing import ClassVar

from h2o_lab.policies.base import Policy, Priority


@dataclass(frozen=True, kw_only=True)
class H2O(Policy):
    """Half of the cache for recent tokens, the rest for those with the most accumulated attention.

    Algorithm 1 of the paper, with its eviction moved from the end of a step to the start of the next, so that
    no query ever sees more than k entries.
    """

    name: ClassVar[str] = "h2o"

    recent_fraction: float | None = 0.5
    priority: Priority = Priority.ACCUMULATED


@dataclass(frozen=True, kw_only=True)
class H2Only(Policy):
    """Heavy hitters alone: only the current token is safe (Table 9)."""

    name: ClassVar[str] = "h2_only"

    recent_tokens: int | None = 1
    priority: Priority = Priority.ACCUMULATED
