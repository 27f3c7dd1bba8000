"""The full cache: nothing is evicted."""

from dataclasses import dataclass
from typing import ClassVar

from h2o_lab.policies.base import Policy, Priority


@dataclass(frozen=True, kw_only=True)
class Full(Policy):
    """Every token is kept; the reference that all budgets are compared with. A budget is ignored."""

    name: ClassVar[str] = "full"
    evicts: ClassVar[bool] = False

    priority: Priority = Priority.STATIC
