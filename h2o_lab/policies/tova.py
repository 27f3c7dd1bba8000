"""The latest query alone decides."""

from dataclasses import dataclass
from typing import ClassVar

from h2o_lab.policies.base import Policy
from h2o_lab.policies.priority import Priority


@dataclass(frozen=True, kw_only=True)
class Tova(Policy):
    """Keeps what the latest query attends to most, the same tokens in all heads of a layer."""

    name: ClassVar[str] = "tova"
    source: ClassVar[str] = "TOVA (Oren et al. 2024), Section 3.2"
    neighbours: ClassVar[str] = "h2o without memory of earlier queries, without a recent window, and per layer."

    recent_tokens: int | None = 1
    scope: str = "layer"
    priority: Priority = Priority.LAST
