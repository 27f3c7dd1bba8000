"""What makes two cells the same: everything that determines their result, and nothing else."""

from __future__ import annotations

import dataclasses
import sys
import uuid
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from h2o_lab.cells.fingerprint import fingerprint, fingerprint_files
from h2o_lab.config import ADDED_LATER
from h2o_lab.models.placement import placement

if TYPE_CHECKING:
    from h2o_lab.checks import Plan
    from h2o_lab.config import Config
    from h2o_lab.policies import Policy

SEMANTICS = 1
"""Version of what policies, tasks and metrics compute. Raise it when a result changes by more than rounding:
finished cells of older versions are then computed anew. A test holds results of this version."""
STATISTICS = 2
"""Version of what `stats=attention` records, likewise; evaluations without statistics do not depend on it."""
PLACES = ("path", "checkpoint_every", "include_path")
"""Keys of a task that say where something lies; what lies there is in the fingerprint of the data."""


def identity(cfg: Config, plan: Plan, data: str, model: str) -> dict[str, Any]:
    """What determines a cell's result, in plain values.

    Args:
        cfg: the resolved configuration.
        plan: its policy and budget; the full cache has none, whatever the configuration says.
        data: fingerprint of the rows.
        model: fingerprint of the model.
    """
    stats: dict[str, Any] = OmegaConf.to_container(cfg.stats, resolve=True)  # type: ignore[assignment]
    recorded = {} if cfg.stats.name == "none" else {"stats": stats | {"version": STATISTICS}}
    task: dict[str, Any] = OmegaConf.to_container(cfg.task, resolve=True)  # type: ignore[assignment]
    return {
        "semantics": SEMANTICS,
        "model": {"content": model, "dtype": cfg.model.dtype, "own_code": cfg.model.trust_remote_code},
        "device": placement(cfg.model),
        "task": {key: value for key, value in task.items() if key not in PLACES and ADDED_LATER.get(key) != value},
        "data": data,
        "policy": _policy(plan.policy),
        "budget": dataclasses.asdict(plan.budget) if plan.budget is not None else None,
        "prefill": cfg.prefill,
        "positions": cfg.positions,
        "executor": cfg.executor,
        "seed": cfg.seed,
    } | recorded


def _policy(policy: Policy) -> dict[str, Any]:
    """Its class and fields; where that is not ours, its module's file too, which no version of ours follows."""
    kind = type(policy)
    told = {"name": policy.name, "class": f"{kind.__module__}.{kind.__qualname__}"} | dataclasses.asdict(policy)
    modules = {base.__module__ for base in kind.__mro__} - {"builtins"}
    return told | {"code": [_source(name) for name in sorted(modules) if name.split(".")[0] != "h2o_lab"]}


@cache
def _source(module: str) -> str:
    """Of a module's file, as it is when first asked for; without a file there is no telling, and no reuse."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return fingerprint_files([Path(file)]) if file else uuid.uuid4().hex


def name_of(cell: dict[str, Any]) -> str:
    """The cell's fingerprint."""
    return fingerprint(cell)
