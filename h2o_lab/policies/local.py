"""The sliding window: the newest k tokens."""

from dataclasses import dataclass
from typing import ClassVar

from h2o_lab.policies.base import Policy
from h2o_lab.policies.priority import Priority


@dataclass(frozen=True, kw_only=True)
class Local(Policy):
    """Keeps the k newest tokens, the current one included."""

    name: ClassVar[str] = "local"
    source: ClassVar[str] = "H2O, Section 5.2 (the baseline Local)"
    neighbours: ClassVar[str] = "streaming without its sinks."

    recent_fraction: float | None = 1.0
    priority: Priority = Priority.POSITION
