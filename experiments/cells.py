"""Which stored results are the cells of an experiment."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pandas as pd
from omegaconf import OmegaConf

from h2o_lab.cells.identity import SEMANTICS, identity, name_of
from h2o_lab.checks import Plan, build_policy
from h2o_lab.config import Config
from h2o_lab.errors import UserError
from h2o_lab.policies import Budget
from h2o_lab.results import load
from h2o_lab.results.store import CONFIG
from h2o_lab.search import full_cache
from h2o_lab.sweep import composed, in_cell
from h2o_lab.verify.stored import stored_config


@dataclass(frozen=True)
class Expected:
    """A cell that an experiment describes.

    Attributes:
        overrides: of the command line.
        cfg: its configuration.
        policy: the policy's name.
        key: equal for two cells if and only if their configurations ask for the same result.
    """

    overrides: tuple[str, ...]
    cfg: Config
    policy: str
    key: str

    @property
    def columns(self) -> dict[str, Any]:
        """The fields that the overrides set, by their dotted names."""
        keys = [text.lstrip("+~").partition("=")[0] for text in self.overrides]
        found = {key: OmegaConf.select(cast(Any, self.cfg), key) for key in keys if "." in key}
        return {key: value for key, value in found.items() if not OmegaConf.is_config(value)}


@dataclass(frozen=True)
class Selection:
    """What is there of an experiment.

    Attributes:
        frame: a row per cell that is there, in the order of the sweep: the columns of `load` and those that the
            cell's overrides set.
        missing: the cells that are not.
    """

    frame: pd.DataFrame
    missing: list[Expected]

    @property
    def total(self) -> int:
        return len(self.frame) + len(self.missing)


def expected(overrides: Sequence[str]) -> list[Expected]:
    """The cells of a sweep, each once: the full cache is the same cell at every budget. Nothing is loaded.

    Raises:
        UserError: a cell is wrong, named with its overrides.
        HydraException: the overrides cannot be composed.
    """
    found: dict[str, Expected] = {}
    for words, cfg in composed(overrides):
        try:
            policy, key = _policy_and_key(cfg)
        except UserError as error:
            raise in_cell(error, words) from error
        found.setdefault(key, Expected(tuple(words), cfg, policy, key))
    return list(found.values())


def references(cells: Sequence[Expected]) -> list[Expected]:
    """The full cache at the task and model of each cell."""
    found: dict[str, Expected] = {}
    for cell in cells:
        cfg = full_cache(cell.cfg)
        words = [text for text in cell.overrides if not text.lstrip("+~").startswith(("policy", "budget"))]
        policy, key = _policy_and_key(cfg)
        found.setdefault(key, Expected((*words, f"policy={policy}"), cfg, policy, key))
    return list(found.values())


def select(cells: Sequence[Expected], *folders: str) -> Selection:
    """The newest finished result of each cell, in or below the folders.

    A folder that is not there, or holds no result, has no cell.
    """
    wanted = {(cell.cfg.task.name, cell.policy) for cell in cells}
    stored = dict(_stored(folders, wanted))  # of equal keys the last, which is the newest
    rows = [stored[cell.key] | cell.columns for cell in cells if cell.key in stored]
    return Selection(pd.DataFrame(rows), [cell for cell in cells if cell.key not in stored])


def _stored(folders: Sequence[str], wanted: set[tuple[str, str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Keys and rows of finished results, the oldest first; a copy can have the configuration that is asked for."""
    try:
        frame = load(*(folder for folder in folders if Path(folder).exists()), copies=True)
    except UserError:
        return
    if "semantics" not in frame:
        return
    frame = frame[(frame["status"] == "finished") & (frame["semantics"] == SEMANTICS)]
    for row in frame.sort_values(["finished", "path"]).to_dict("records"):
        if (row["task"], row["policy"]) not in wanted:
            continue
        try:
            yield _policy_and_key(stored_config(Path(row["path"]) / CONFIG))[1], cast(dict[str, Any], row)
        except UserError:
            continue


def _policy_and_key(cfg: Config) -> tuple[str, str]:
    """The policy's name, and what determines the result: not where it, the model, the rows or the device are.

    Raises:
        UserError: policy or budget are wrong.
    """
    policy = build_policy(cfg.policy)
    budget = Budget(cfg.budget, cfg.budget_tokens, cfg.budget_base) if policy.budgeted else None
    anywhere = copy.deepcopy(cfg)
    anywhere.model.device, anywhere.model.device_map, anywhere.model.tp_plan = "auto", "auto", None
    model, text = cfg.model, getattr(cfg.task, "path", None)
    content = name_of({"model": [model.source, model.id, model.revision, _name(model.path)]})
    told = identity(anywhere, Plan(policy, budget), name_of({"data": [cfg.data.source, _name(text)]}), content)
    return policy.name, name_of(told)


def _name(path: str | None) -> str | None:
    return Path(path).name if path else None
