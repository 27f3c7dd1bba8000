"""The full cache: nothing is evicted."""

from dataclasses import dataclass
from typing import ClassVar

from h2o_lab.policies.base import Policy
from h2o_lab.policies.priority import Priority


@dataclass(frozen=True, kw_only=True)
class Full(Policy):
    """Keeps every token; a budget is ignored."""

    name: ClassVar[str] = "full"
    source: ClassVar[str] = "the model as it is"
    neighbours: ClassVar[str] = "What all budgets are compared with."
    evicts: ClassVar[bool] = False
    budgeted: ClassVar[bool] = False

    priority: Priority = Priority.POSITION
