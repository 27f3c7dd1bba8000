"""Attention sinks and a sliding window."""

from dataclasses import dataclass
from typing import ClassVar

from h2o_lab.policies.base import Policy, Priority


@dataclass(frozen=True, kw_only=True)
class Streaming(Policy):
    """Keep the first tokens of the sequence and the newest (StreamingLLM, Xiao et al. 2023, Section 3.2)."""

    name: ClassVar[str] = "streaming"

    sink_tokens: int = 4
    priority: Priority = Priority.STATIC
