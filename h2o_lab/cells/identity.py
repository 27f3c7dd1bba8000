"""What makes two cells the same: everything that determines their result, and nothing else."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from h2o_lab.cells.fingerprint import fingerprint

if TYPE_CHECKING:
    from h2o_lab.checks import Plan
    from h2o_lab.config import Config

SEMANTICS = 1
"""Version of what policies, tasks and metrics compute. Raise it when a result changes by more than rounding:
finished cells of older versions are then computed anew. A test holds results of this version."""
PLACES = ("path", "checkpoint", "checkpoint_every", "include_path")
"""Keys of a task that say where something lies; what lies there is in the fingerprint of the data."""


def identity(cfg: Config, plan: Plan, data: str, model: str) -> dict[str, Any]:
    """What determines a cell's result, in plain values.

    Args:
        cfg: the resolved configuration.
        plan: its policy and budget; the full cache has none, whatever the configuration says.
        data: fingerprint of the rows.
        model: fingerprint of the model.
    """
    task: dict[str, Any] = OmegaConf.to_container(cfg.task, resolve=True)  # type: ignore[assignment]
    policy = dataclasses.asdict(plan.policy)
    return {
        "semantics": SEMANTICS,
        "model": {"name": cfg.model.name, "dtype": cfg.model.dtype, "content": model},
        "task": {key: value for key, value in task.items() if key not in PLACES},
        "data": data,
        "policy": {"name": plan.policy.name, "class": type(plan.policy).__qualname__} | policy,
        "budget": dataclasses.asdict(plan.budget) if plan.budget is not None else None,
        "prefill": cfg.prefill,
        "positions": cfg.positions,
        "executor": cfg.executor,
        "seed": cfg.seed,
    }


def name_of(cell: dict[str, Any]) -> str:
    """The cell's fingerprint."""
    return fingerprint(cell)
