"""The cells of a sweep: composed, checked, and told apart by what determines their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import OmegaConf

from h2o_lab.cells import Cell
from h2o_lab.cells.identity import identity, name_of
from h2o_lab.checks import Plan, check
from h2o_lab.compute import task_data
from h2o_lab.config import Config
from h2o_lab.errors import UserError
from h2o_lab.models import model_fingerprint
from h2o_lab.models.placement import in_one_process
from h2o_lab.sweep import composed, in_cell

TO_DO, FINISHED = "to do", "finished"


@dataclass(frozen=True)
class Planned:
    """A cell of the sweep.

    Attributes:
        overrides: of the command line.
        cfg: its configuration.
        plan: its policy and budget.
        name: its fingerprint.
        state: `to do`, `finished` (below `results_dir`), or `as cell N` for the same cell once more.
    """

    overrides: tuple[str, ...]
    cfg: Config
    plan: Plan
    name: str
    state: str

    @property
    def described(self) -> tuple[str, str, str]:
        """Model, task and data as YAML: cells that share them share what is loaded."""
        return _yaml(self.cfg.model), _yaml(self.cfg.task), _yaml(self.cfg.data)


def planned(overrides: Sequence[str]) -> list[Planned]:
    """Every cell that `python -m h2o_lab.run -m` would start with these overrides, in its order.

    Raises:
        UserError: a cell is wrong, named with its overrides, or a sweeper searches instead of taking a list.
        HydraException: the overrides cannot be composed.
    """
    found: list[Planned] = []
    for words, cfg in composed(overrides):
        try:
            found.append(_planned(words, cfg, found))
        except (UserError, HydraException) as error:
            raise in_cell(error, words) from error
    return found


def _planned(words: list[str], cfg: Config, before: Sequence[Planned]) -> Planned:
    in_one_process(cfg.model)
    plan = check(cfg)
    content = task_data(_yaml(cfg.task), _yaml(cfg.data))[1]
    cell = Cell(Path(cfg.results_dir), name_of(identity(cfg, plan, content, model_fingerprint(cfg.model))))
    twins = [place for place, other in enumerate(before, start=1) if other.name == cell.name]
    state = FINISHED if cfg.resume and cell.finished() is not None else TO_DO
    if twins and cfg.resume:
        state = f"as cell {twins[0]}"
    return Planned(tuple(words), cfg, plan, cell.name, state)


def _yaml(cfg: Any) -> str:
    return OmegaConf.to_yaml(cfg, resolve=True)
