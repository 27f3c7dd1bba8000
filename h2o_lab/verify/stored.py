"""The folder of one result, with its configuration as this version of the code understands it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from h2o_lab.config import (
    Config,
    HarnessConfig,
    PerplexityConfig,
    RetrievalConfig,
    SummarisationConfig,
)
from h2o_lab.errors import UserError
from h2o_lab.results.store import CONFIG, RESULT, SAMPLES, SCHEMA

TASKS = {kind.kind: kind for kind in (HarnessConfig, PerplexityConfig, RetrievalConfig, SummarisationConfig)}
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""In C where there is one."""
PLACES = ("data.dir", "model.path", "task.path", "task.include_path")
"""Keys that hold a path; a relative one counts from the folder in which the run was started."""


@dataclass(frozen=True)
class Stored:
    """A finished result.

    Attributes:
        folder: where it lies.
        cfg: its configuration, with absolute paths.
        record: `result.json`.
        samples: the lines of `samples.jsonl`.
    """

    folder: Path
    cfg: Config
    record: dict[str, Any]
    samples: list[dict[str, Any]]


def read_stored(folder: Path, start: Path | None = None) -> Stored:
    """A finished result; relative paths of its configuration are resolved.

    Args:
        folder: the folder of one cell.
        start: the folder in which the run was started; by default the one that holds its `results_dir`, or else
            the current one.

    Raises:
        UserError: the folder holds no finished result that this version can read, or a path leads nowhere.
    """
    record = _record(folder)
    cfg = stored_config(folder / CONFIG)
    samples = _samples(folder / SAMPLES)
    _find_places(cfg, [start] if start is not None else [*_started_in(folder, cfg.results_dir), Path.cwd()])
    return Stored(folder, cfg, record, samples)


def _record(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: name the folder of one result.")
    if not (folder / RESULT).is_file():
        below = sorted(folder.rglob(RESULT))
        hint = f"there are {len(below)} below it, such as {below[0].parent}" if below else "a run writes one"
        raise UserError(f"{folder} holds no {RESULT}: name the folder of one result ({hint}).")
    try:
        record = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{folder / RESULT} cannot be read: {error}.") from error
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise UserError(f"{folder / RESULT} is no result of schema {SCHEMA}, which this version reads.")
    if record.get("status") != "finished":
        raise UserError(
            f"{folder} holds a {record.get('status')} run ({record.get('error')}): only a finished one has samples."
        )
    return record


def stored_config(file: Path) -> Config:
    """A resolved configuration in the dataclasses of this version: what it lacks gets its default.

    Raises:
        UserError: the file cannot be read, or does not fit this version.
    """
    try:
        values = yaml.load(file.read_text(encoding="utf-8"), Loader=LOADER)
        return cast(Config, OmegaConf.merge(_schema(values["task"]["kind"]), values))
    except OmegaConfBaseException as error:
        raise UserError(f"{file} does not fit this version of h2o_lab: {_line(error)}.") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError) as error:
        raise UserError(
            f"{file} cannot be read ({_line(error)}): only a run that wrote it can be verified."
        ) from error


@cache
def _schema(kind: str) -> DictConfig:
    """Of the configuration of a kind of task."""
    task = OmegaConf.structured(TASKS[kind])
    return cast(DictConfig, OmegaConf.merge(OmegaConf.structured(Config), {"task": task}))


def _samples(file: Path) -> list[dict[str, Any]]:
    try:
        samples = [dict(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{file} cannot be read ({_line(error)}): there is nothing to compare with.") from error
    if not samples:
        raise UserError(f"{file} is empty: there is nothing to compare with.")
    return samples


def _started_in(folder: Path, results_dir: str) -> Iterator[Path]:
    """Where a run was started that wrote this folder into a relative `results_dir`."""
    wanted = Path(results_dir).parts
    whole = folder.resolve()
    for above in (whole, *whole.parents):
        if above.parts[-len(wanted) :] == wanted and not Path(results_dir).is_absolute():
            yield Path(*above.parts[: -len(wanted)])


def _find_places(cfg: Config, bases: list[Path]) -> None:
    """Make the paths absolute, from the first base in which all of them are.

    Raises:
        UserError: there is none.
    """
    found = {key: OmegaConf.select(cast(Any, cfg), key) for key in PLACES}
    relative = {key: value for key, value in found.items() if value and not Path(value).expanduser().is_absolute()}
    for base in bases:
        if all((base / value).exists() for value in relative.values()):
            for key, value in relative.items():
                OmegaConf.update(cast(Any, cfg), key, str((base / value).resolve()))
            return
    key, value = next(iter(relative.items()))
    places = " and ".join(dict.fromkeys(map(str, bases)))
    raise UserError(
        f"{key}={value} counts from the folder in which the run was started, and is not in {places}: name that "
        "folder with --start."
    )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
