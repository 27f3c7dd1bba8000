"""Random eviction: the baseline that tells what the heavy hitters are worth."""

from dataclasses import dataclass
from typing import ClassVar

from h2o_lab.policies.base import Policy
from h2o_lab.policies.priority import Priority


@dataclass(frozen=True, kw_only=True)
class Random(Policy):
    """Keeps half of k for recent tokens, the rest drawn by a hash of (seed, layer, head, position)."""

    name: ClassVar[str] = "random"
    source: ClassVar[str] = "a baseline that the H2O paper lacks"
    neighbours: ClassVar[str] = "h2o with a coin in place of its scores."

    recent_fraction: float | None = 0.5
    priority: Priority = Priority.RANDOM
