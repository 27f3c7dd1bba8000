"""Which stored results are the cells of an experiment."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import pandas as pd
from omegaconf import OmegaConf

from h2o_lab.cells.identity import SEMANTICS, STATISTICS, identity, name_of
from h2o_lab.checks import Plan, build_policy
from h2o_lab.compute import describe, task_data
from h2o_lab.config import Config
from h2o_lab.errors import UserError
from h2o_lab.models import model_fingerprint
from h2o_lab.policies import Budget
from h2o_lab.results import load
from h2o_lab.results.collect import flatten
from h2o_lab.results.store import CONFIG
from h2o_lab.search import full_cache
from h2o_lab.sweep import composed, in_cell
from h2o_lab.verify.stored import stored_config

logger = logging.getLogger("h2o_lab.experiments")

Row = dict[str, Any]
SHOTS = "fewshot.examples"
"""Column of the number of examples in the prompt, empty for tasks that have none."""


@dataclass(frozen=True)
class Expected:
    """A cell that an experiment describes.

    Attributes:
        overrides: of the command line.
        cfg: its configuration.
        policy: the policy's name.
        told: what the record of its result says too, in its flat words, as far as the key depends on it.
        key: equal for two cells if and only if their configurations ask for the same result, folders of models and
            rows being known by their last part.
    """

    overrides: tuple[str, ...]
    cfg: Config
    policy: str
    told: dict[str, Any]
    key: str

    @property
    def places(self) -> tuple[str | None, ...]:
        """Folders and files that the cell is about."""
        return self.cfg.model.path, self.cfg.data.dir, *_task_places(self.cfg)

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
        frame: a row per cell that is there, in the order of the sweep: the columns of `load`, `fewshot.examples`,
            and those that the cell's overrides set.
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
    found: dict[Any, Expected] = {}
    for words, cfg in composed(overrides):
        try:
            cell = _expected(words, cfg)
        except UserError as error:
            raise in_cell(error, words) from error
        found.setdefault((cell.key, cell.places), cell)
    return list(found.values())


def references(cells: Sequence[Expected]) -> list[Expected]:
    """The full cache at the task and model of each cell."""
    found: dict[Any, Expected] = {}
    for cell in cells:
        cfg = full_cache(cell.cfg)
        words = [text for text in cell.overrides if not text.lstrip("+~").startswith(("policy", "budget"))]
        full = _expected([*words, "policy=full"], cfg)
        found.setdefault((full.key, full.places), full)
    return list(found.values())


def select(cells: Sequence[Expected], *folders: str) -> Selection:
    """The newest finished result of each cell, in or below the folders.

    Results of another model or other rows than those at the cell's places are passed over. Where nothing is there,
    those count that the newest result was computed with, so that cells of two models or data never stand together.
    A folder that is not there, or holds no result, has no cell.
    """
    stored: dict[str, list[Row]] = {cell.key: [] for cell in cells}
    for key, row in _stored(folders, cells):
        stored.setdefault(key, []).append(row)
    found = {(cell.key, cell.places): stored[cell.key] for cell in cells}
    _keep_one_content(cells, found, "model", lambda cell: _yaml(cell.cfg.model), _model_there)
    _keep_one_content(cells, found, "data", lambda cell: (_yaml(cell.cfg.task), _yaml(cell.cfg.data)), _data_there)
    picked = [(cell, found[cell.key, cell.places]) for cell in cells]
    others = [stored[cell.key][-1] for cell, rows in picked if stored[cell.key] and not rows]
    if others:
        logger.warning(
            "not counted, being of another model or other data of the same name: results of %d cell(s), such as %s",
            len(others),
            others[0]["path"],
        )
    frame = pd.DataFrame([{SHOTS: None} | rows[-1] | cell.columns for cell, rows in picked if rows])
    return Selection(frame, [cell for cell, rows in picked if not rows])


def _keep_one_content(
    cells: Sequence[Expected],
    found: dict[Any, list[Row]],
    part: str,
    group: Callable[[Expected], Any],
    there: Callable[[Config], str | None],
) -> None:
    """Of the results found for cells of one group, keep those of one content, in place.

    Args:
        cells: the cells.
        found: by key and places of a cell its results, the newest last.
        part: of the content, `model` or `data`.
        group: equal for cells that should have the same content.
        there: the content at a cell's places, None where that cannot be told.
    """
    groups: dict[Any, list[Expected]] = {}
    for cell in cells:
        groups.setdefault(group(cell), []).append(cell)
    for members in groups.values():
        names = [(cell.key, cell.places) for cell in members]
        rows = sorted((row for name in names for row in found[name]), key=_age)
        known = [row[f"content.{part}"] for row in rows if isinstance(row.get(f"content.{part}"), str)]
        if known:
            content = there(members[0].cfg) or known[-1]
            for name in names:
                found[name] = [row for row in found[name] if row.get(f"content.{part}") in (None, content)]


def _model_there(cfg: Config) -> str | None:
    if cfg.model.source != "local":
        return None
    try:
        return model_fingerprint(cfg.model)
    except UserError:
        return None


def _data_there(cfg: Config) -> str | None:
    if cfg.data.source != "folder" and not any(_task_places(cfg)):
        return None
    try:
        return task_data(_yaml(cfg.task), _yaml(cfg.data))[1]
    except UserError:
        return None


def _task_places(cfg: Config) -> tuple[str | None, ...]:
    return getattr(cfg.task, "path", None), getattr(cfg.task, "include_path", None)


def _yaml(cfg: Any) -> str:
    return OmegaConf.to_yaml(cfg, resolve=True)


def _age(row: Row) -> tuple[str, str]:
    return row["finished"], row["path"]


def _stored(folders: Sequence[str], cells: Sequence[Expected]) -> Iterator[tuple[str, Row]]:
    """Keys and rows of finished results, the oldest first; a copy can have the configuration that is asked for.

    A configuration takes long to read, so that records that say something else than every cell are passed over.
    """
    try:
        frame = load(*(folder for folder in folders if Path(folder).exists()), copies=True)
    except UserError:
        return
    if "semantics" not in frame:
        return
    frame = frame[(frame["status"] == "finished") & (frame["semantics"] == SEMANTICS)]
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    wanted: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in cells:
        wanted.setdefault((cell.cfg.task.name, cell.policy), []).append(cell.told)
    for row in sorted(cast(list[Row], rows), key=_age):
        if not any(_may_be(row, told) for told in wanted.get((row["task"], row["policy"]), [])):
            continue
        file = Path(row["path"]) / CONFIG
        try:
            state = file.stat()
            yield _stored_key(file, state.st_size, state.st_mtime_ns, row.get("statistics")), row
        except (UserError, OSError):
            continue


def _may_be(row: Row, told: dict[str, Any]) -> bool:
    """Whether a row says nothing that the cell does not."""
    return all(row.get(name) in (None, value) for name, value in told.items())


@cache
def _stored_key(file: Path, size: int, changed: int, statistics: int | None) -> str:
    """Of a stored configuration, read once unless it changes.

    Raises:
        UserError: it cannot be read, is of no cell, or recorded statistics of another meaning.
    """
    cfg = stored_config(file)
    if cfg.stats.name != "none" and statistics != STATISTICS:
        raise UserError(f"{file}: statistics of version {statistics}, where {STATISTICS} is what is computed now.")
    return _expected([], cfg).key


def _expected(overrides: Sequence[str], cfg: Config) -> Expected:
    """A cell; what determines the result is not where it, the model, the rows or the device are.

    Raises:
        UserError: policy or budget are wrong.
    """
    policy = build_policy(cfg.policy)
    budget = Budget(cfg.budget, cfg.budget_tokens, cfg.budget_base) if policy.budgeted else None
    anywhere = copy.deepcopy(cfg)
    anywhere.model.device, anywhere.model.device_map, anywhere.model.tp_plan = "auto", "auto", None
    model, text = cfg.model, getattr(cfg.task, "path", None)
    content = name_of({"model": [model.source, model.id, model.revision, _name(model.path)]})
    plan = Plan(policy, budget)
    key = name_of(identity(anywhere, plan, name_of({"data": [cfg.data.source, _name(text)]}), content))
    told = {name: value for name, value in flatten(describe(cfg, plan)).items() if not isinstance(value, tuple)}
    for name in ("model", *(() if budget else ("budget_base",))):
        del told[name]  # the key does not depend on it
    return Expected(tuple(overrides), cfg, policy.name, told, key)


def _name(path: str | None) -> str | None:
    return Path(path).name if path else None
