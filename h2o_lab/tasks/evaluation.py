"""What every kind of task hands back to the runner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Evaluation:
    """One cell, evaluated.

    Attributes:
        metrics: by name, the main one first; `<name>_stderr` beside a mean.
        samples: one record per question, text or document.
        origin: where the rows come from.
        caps: the budget k of each sequence, in entries (for the full cache: the tokens fed).
        cut: number of sequences whose budget was too small for what the policy asks.
        kv_resident: bytes of KV cache that each sequence held at its end.
        kv_reserved: most bytes allocated for KV at once.
        tokens_computed: tokens fed to the model; tokens_scored: those that were scored or generated.
        seconds: time spent in the model.
        details: what else the result record should hold, by section.
    """

    metrics: dict[str, float]
    samples: list[dict[str, Any]]
    origin: str
    caps: list[int]
    cut: int
    kv_resident: list[int]
    kv_reserved: int
    tokens_computed: int
    tokens_scored: int
    seconds: float
    details: dict[str, Any] = field(default_factory=dict)


def mean_and_error(name: str, values: list[float]) -> dict[str, float]:
    """The mean, and its standard error where there are two values or more."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return {name: mean}
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return {name: mean, f"{name}_stderr": (variance / len(values)) ** 0.5}
