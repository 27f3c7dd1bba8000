"""The sliding window: the newest k tokens."""

from dataclasses import dataclass
from typing import ClassVar

from h2o_lab.policies.base import Policy, Priority


@dataclass(frozen=True, kw_only=True)
class Local(Policy):
    """Keep the k newest tokens, the current one included (the paper's "Local" baseline, Section 5.2)."""

    name: ClassVar[str] = "local"

    recent_fraction: float | None = 1.0
    priority: Priority = Priority.STATIC
