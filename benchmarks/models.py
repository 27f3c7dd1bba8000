"""What every benchmark shares: the packaged model, and interleaved timing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numba
import torch
from rich.console import Console

from h2o_lab.config import ModelConfig
from h2o_lab.models import LoadedModel, load_model

console = Console()


def packaged_model(threads: int) -> LoadedModel:
    """SmolLM2-135M-Instruct in float32, with torch's and numba's threads set alike."""
    numba.set_num_threads(threads)  # first: numba's start sets torch's threads too
    torch.set_num_threads(threads)
    return load_model(ModelConfig(name="smollm2_135m", source="packaged"))


def interleaved(
    candidates: dict[str, Callable[[], object]], repeats: int, warm_up: bool = True
) -> dict[str, list[float]]:
    """Seconds of each candidate, run in turn A B C A B C, after one warm-up each unless that was done."""
    for run in candidates.values() if warm_up else ():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def median_ratio(seconds: list[float], base: list[float]) -> float:
    """Median over the rounds of seconds / base, pair by pair."""
    return statistics.median(a / b for a, b in zip(seconds, base, strict=True))
