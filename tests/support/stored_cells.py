"""Results as a sweep stores them, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from experiments.cells import Expected
from h2o_lab.cells.identity import SEMANTICS
from h2o_lab.results import open_result

QUESTIONS = 100


def store(
    asked: Expected, folder: Path, accuracy: float = 0.6, samples: Sequence[dict[str, Any]] = (), **changes: Any
) -> Path:
    """A finished result of a cell: half of `accuracy` as `acc`, `accuracy` as `acc_norm`."""
    cfg = asked.cfg
    result = open_result(folder)
    result.write_config(OmegaConf.to_container(cfg, resolve=True))
    full = asked.policy == "full"
    told: dict[str, Any] = {
        "model": cfg.model.name,
        "task": cfg.task.name,
        "policy": asked.policy,
        "budget": None if full else cfg.budget,
        "budget_tokens": None if full else cfg.budget_tokens,
        "metrics": _shares(acc=accuracy / 2, acc_norm=accuracy),
        "main_metric": "acc",
        "samples": len(samples) or QUESTIONS,
        "kv_bytes": {"resident_mean": 1000 if full else 1000 * (cfg.budget or 0.1)},
        "fewshot": {"examples": getattr(cfg.task, "num_fewshot", 0)},
        "semantics": SEMANTICS,
        "cell": asked.key,
    }
    result.write_samples(list(samples))
    result.finish(told | changes)
    return folder


def _shares(**values: float) -> dict[str, float]:
    """Shares of the questions with their standard errors."""
    errors = {f"{name}_stderr": (value * (1 - value) / (QUESTIONS - 1)) ** 0.5 for name, value in values.items()}
    return values | errors


def stored(cells: Sequence[Expected], root: Path, **changes: Any) -> str:
    """The folder that holds a result of each cell."""
    for place, cell in enumerate(cells):
        store(cell, root / str(place), **changes)
    return str(root)
