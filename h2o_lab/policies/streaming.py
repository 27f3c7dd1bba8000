"""Attention sinks and a sliding window, alone and with heavy hitters."""

from dataclasses import dataclass
from typing import ClassVar

from h2o_lab.policies.base import Policy
from h2o_lab.policies.priority import Priority


@dataclass(frozen=True, kw_only=True)
class Streaming(Policy):
    """Keeps the first 4 tokens of the sequence and the newest k - 4."""

    name: ClassVar[str] = "streaming"
    source: ClassVar[str] = "StreamingLLM (Xiao et al. 2023), Section 3.2"
    neighbours: ClassVar[str] = (
        "local with sinks; the paper that it comes from uses it with positions=rolling, needed beyond the trained "
        "context."
    )

    sink_tokens: int = 4
    priority: Priority = Priority.POSITION


@dataclass(frozen=True, kw_only=True)
class H2OStreaming(Policy):
    """Keeps the first 4 tokens, half of k for recent ones, and the most attended of the rest."""

    name: ClassVar[str] = "h2o_streaming"
    source: ClassVar[str] = "H2O, Section 5.3 Q1 and Figure 5"
    neighbours: ClassVar[str] = "h2o with sinks, for streams with positions=rolling."

    recent_fraction: float | None = 0.5
    sink_tokens: int = 4
    priority: Priority = Priority.ACCUMULATED
