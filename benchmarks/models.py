"""What every benchmark shares: the packaged model, interleaved timing, and a place for what was measured."""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numba
import torch
from rich.console import Console

from h2o_lab.config import ModelConfig
from h2o_lab.models import LoadedModel, load_model
from h2o_lab.results import environment, open_result

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


def record(args: argparse.Namespace, name: str, metrics: dict[str, float], rows: list[dict[str, Any]]) -> None:
    """Keep what a benchmark has measured as a result of its own, a row a sample; needs `results_dir` in `args`."""
    result = open_result(Path(args.results_dir) / f"{datetime.now():%Y-%m-%d_%H-%M-%S-%f}")
    result.write_config(vars(args))
    result.write_samples(rows)
    about = {"model": "smollm2_135m", "task": f"benchmark_{name}", "main_metric": next(iter(metrics))}
    load = {"load_average": os.getloadavg()}
    result.finish(about | {"metrics": metrics, "samples": len(rows), "environment": environment() | load})
    console.print(f"results in {os.path.relpath(result.path)}")
