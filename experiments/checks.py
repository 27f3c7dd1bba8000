"""What an experiment refuses before anything is computed: cells that it cannot draw, or not tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from omegaconf import OmegaConf

from experiments.cells import Expected
from experiments.tables import model_name
from h2o_lab.errors import UserError
from h2o_lab.sweep import in_cell

SHOWN = ("model", "task", "policy", "task.num_fewshot", "budget", "budget_tokens")
"""What figures and tables tell apart: groups by their names, and keys."""


def check_cells(cells: Sequence[Expected], name: str, needs: Sequence[str], shows: Sequence[str]) -> None:
    """Every cell can be drawn, and no two of them at one place.

    Args:
        cells: of a sweep.
        name: of the experiment.
        needs, shows: as of `Experiment`.

    Raises:
        UserError: a cell lacks what is needed, or two differ in something that is not shown.
    """
    for cell in cells:
        for need in needs:
            key, _, value = need.partition("=")
            found = OmegaConf.select(cast(Any, cell.cfg), key)
            if value != ("null" if found is None else str(found)):
                group = key.removesuffix(".name")
                cause = f"{name} needs {group}={value}, and not {group}={found}"
                raise in_cell(UserError(cause), cell.overrides)
    places: dict[tuple[Any, ...], Expected] = {}
    for cell in cells:
        other = places.setdefault(tuple(_shown(cell, key) for key in shows), cell)
        if other is not cell:
            raise UserError(
                f"{name} tells cells apart by {', '.join(shows)}, and would show {_without(other, cell)} and "
                f"{_without(cell, other)} at one place: give one value."
            )


def _shown(cell: Expected, key: str) -> Any:
    if key == "model":
        return model_name(cell.cfg.model.name)
    if key in ("policy", "task", "budget", "budget_tokens"):
        return cell.told[key]  # of the full cache no budget
    return OmegaConf.select(cast(Any, cell.cfg), key)


def _without(cell: Expected, other: Expected) -> str:
    """The overrides that the other cell does not have."""
    return " ".join(word for word in cell.overrides if word not in other.overrides)
