"""Reading results back: one table row per cell, one per question."""

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from h2o_lab.errors import UserError
from h2o_lab.results.store import RESULT, SAMPLES, SCHEMA

if TYPE_CHECKING:
    from pandas import DataFrame

log = logging.getLogger(__name__)

CELL = ["model", "task", "policy", "budget", "budget_tokens"]
"""What names a cell of a sweep."""
COLUMNS = [
    *["status", "error", *CELL, "main_metric", "samples", "k_mean", "k_min", "k_max"],
    *["kv_bytes.resident_mean", "kv_bytes.resident_max", "kv_bytes.reserved_max", "tokens_per_second"],
    *["seconds.load_model", "seconds.load_data", "seconds.evaluate"],
    *["seed", "git_commit", "git_dirty", "overrides", "path"],
]
"""Columns that `load` always has, whatever the results hold."""


def load(*paths: Path | str, copies: bool = False) -> "DataFrame":
    """Every `result.json` in or below `paths`, one row each.

    Nested keys are joined by dots (`kv_bytes.resident_mean`, in bytes; `seconds.evaluate`), except the short
    names for metrics (`acc`, `acc_stderr`), `k_mean`, `k_min`, `k_max`, `git_commit` and `git_dirty`.
    A file that cannot be read is a row with status `unreadable` and the reason in `error`. `path` is the
    result folder. A copy that a restarted sweep took over (`reused_from`) is left out where its original is there,
    unless `copies` are wanted.

    Raises:
        UserError: A path does not exist, or there is no result below any of them.
    """
    from pandas import DataFrame

    found = records(*paths)
    frame = DataFrame([flatten(record) for record in (found if copies else originals(found))])
    return frame.reindex(columns=[*COLUMNS, *(name for name in frame.columns if name not in COLUMNS)])


def records(*paths: Path | str) -> list[dict[str, Any]]:
    """Every `result.json` in or below `paths` as it is, copies too, and the `path` of its folder.

    One that cannot be read has status `unreadable` and the reason in `error`.

    Raises:
        UserError: A path does not exist, or there is no result below any of them.
    """
    return [_record(file) for file in _find(paths, RESULT)]


def originals(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records, or rows, without copies of results that are among them."""
    computed = {str(row.get("cell")) for row in found if row["status"] == "finished" and "reused_from" not in row}
    return [row for row in found if "reused_from" not in row or str(row.get("cell")) not in computed]


def load_samples(*paths: Path | str) -> "DataFrame":
    """Every line of every `samples.jsonl` in or below `paths`, with its model, task, policy and budget
    (its own where the line says them).

    Lines that cannot be read, such as a last one cut short, are left out and counted in a logged warning.

    Raises:
        UserError: A path does not exist, or there are no samples below any of them.
    """
    from pandas import DataFrame

    rows: list[dict[str, Any]] = []
    files = {str(file.parent): file for file in _find(paths, SAMPLES)}
    for result in originals([_record(file.with_name(RESULT)) for file in files.values()]):
        file = files[result["path"]]
        cell = {name: result.get(name) for name in [*CELL, "path"]}
        samples, damaged = _read_lines(file)
        rows += [cell | sample for sample in samples]
        if damaged:
            log.warning("%s: %d damaged line(s) left out, %d read.", file, damaged, len(samples))
    return DataFrame(rows, columns=None if rows else [*CELL, "path"])


def flatten(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result with one level of keys, named as the columns of `load`."""
    flat: dict[str, Any] = {}
    for key, value in _walk(result):
        short = _short(key)
        flat[key if short in flat or short in result else short] = value
    return flat


def _short(key: str) -> str:
    for prefix, replacement in (("metrics.", ""), ("k.", "k_"), ("environment.git.", "git_")):
        if key.startswith(prefix):
            return replacement + key.removeprefix(prefix)
    return key


def _walk(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _walk(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _record(file: Path) -> dict[str, Any]:
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(result, dict) or result.get("schema") != SCHEMA or "status" not in result:
            raise ValueError(f"not a result of schema {SCHEMA}")
        flatten(result)  # what is nested too deep cannot be read either
    except (OSError, ValueError, RecursionError) as error:
        result = {"status": "unreadable", "error": f"{file.name} cannot be read: {error}"}
    return result | {"path": str(file.parent)}


def _read_lines(file: Path) -> tuple[list[dict[str, Any]], int]:
    samples, damaged = [], 0
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                samples.append(dict(json.loads(line)))
            except (ValueError, TypeError, RecursionError):
                damaged += 1
    return samples, damaged


def _find(paths: tuple[Path | str, ...], name: str) -> list[Path]:
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise UserError(f"There is no file or folder {path} to read results from.")
        for file in sorted(path.rglob(name)) if path.is_dir() else [path]:
            found.setdefault(file.resolve(), file)
    if not found:
        places = ", ".join(map(str, paths)) or "no folder"
        raise UserError(f"No {name} in or below {places}: name a folder that a finished run wrote.")
    return list(found.values())
