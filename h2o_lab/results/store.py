"""One result folder per cell; each file in it is written whole or not at all."""

import json
import math
import os
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from h2o_lab.errors import UserError

SCHEMA = 1
"""Version of `result.json`; raised when a key changes its meaning."""
CONFIG = "config.yaml"
SAMPLES = "samples.jsonl"
RESULT = "result.json"
STATS = "stats"
"""Subfolder of recorded attention."""


def plain(value: Any) -> Any:
    """`value` as JSON knows it: dict, list, str, int, float, bool or None.

    numpy and torch scalars and arrays become numbers and lists, paths become strings. JSON has no NaN and no
    infinity: both become None (`null`), so that a number in a result is always a number.

    Raises:
        TypeError: `value` holds something else, an object of a class for instance.
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # numpy and torch, without importing either
        return plain(value.tolist())
    raise TypeError(f"A result cannot hold a {type(value).__name__}: {value!r}")


def to_json(value: Any, indent: int | None = None) -> str:
    """Strict JSON of `plain(value)`; without `indent` on one line."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=indent)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Put `content` into `path`, text as UTF-8, so that a reader sees the old file or the new one, never a part.

    Raises:
        UserError: The file cannot be written (no space, no permission).
    """
    if isinstance(content, str):
        # A lone surrogate, which UTF-8 cannot hold, turns into the escape that JSON has for it.
        content = content.encode("utf-8", "backslashreplace")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"Cannot write {path}: {error.strerror}; results need a writable folder.") from error


def sentence(error: BaseException) -> str:
    """One line that says what went wrong; defects carry the name of their exception."""
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}".removesuffix(": ")


@dataclass(frozen=True)
class ResultFolder:
    """The open result folder of one cell; made by `open_result`."""

    path: Path
    started: str
    """Time of opening, ISO 8601 in UTC."""

    def write_config(self, cfg: Mapping[str, Any]) -> None:
        """Store the resolved configuration as `config.yaml`."""
        write_atomic(self.path / CONFIG, yaml.safe_dump(plain(cfg), sort_keys=False, allow_unicode=True))

    def write_samples(self, samples: list[dict[str, Any]]) -> None:
        """Store one question per line in `samples.jsonl`."""
        write_atomic(self.path / SAMPLES, "".join(to_json(sample) + "\n" for sample in samples))

    def write_stats(self, tables: Mapping[str, bytes]) -> None:
        """Store the tables of recorded attention, by file name, in the subfolder `stats`.

        Raises:
            UserError: a file cannot be written.
        """
        for name, content in tables.items():
            (self.path / STATS).mkdir(exist_ok=True)
            write_atomic(self.path / STATS / name, content)

    def finish(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Write `result.json` with status `finished`; returns what it now holds.

        Raises:
            UserError: The folder holds a `result.json` by now.
        """
        return self._conclude("finished", result)

    def fail(self, error: BaseException, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Write `result.json` with status `failed`, the error in one sentence and its traceback.

        `known` is what can be said of the cell nevertheless, above all its model, task, policy and budget.

        Raises:
            UserError: The folder holds a `result.json` by now.
        """
        trace = "".join(traceback.format_exception(error))
        return self._conclude("failed", {**(known or {}), "error": sentence(error), "traceback": trace})

    def adopt(self, finished: Path, told: Mapping[str, Any]) -> dict[str, Any]:
        """Copy a finished result of the same cell into this folder; returns the record.

        Args:
            finished: its folder.
            told: what is said in place of the original's words, above all where it is from (`reused_from`).

        Raises:
            UserError: this folder holds a `result.json`, or a file cannot be read or written.
        """
        try:
            record = json.loads((finished / RESULT).read_text(encoding="utf-8"))
            samples = (finished / SAMPLES).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UserError(f"{finished} cannot be read ({error}): delete it, or use resume=false.") from error
        _refuse_recorded(self.path)
        record |= plain(told)
        self.write_stats({table.name: table.read_bytes() for table in (finished / STATS).glob("*.parquet")})
        write_atomic(self.path / SAMPLES, samples)
        write_atomic(self.path / RESULT, to_json(record, indent=2) + "\n")
        return record

    def _conclude(self, status: str, result: Mapping[str, Any]) -> dict[str, Any]:
        _refuse_recorded(self.path)
        head = {"schema": SCHEMA, "status": status, "started": self.started, "finished": _now()}
        record = head | plain(result) | head
        write_atomic(self.path / RESULT, to_json(record, indent=2) + "\n")
        return record


def open_result(folder: Path) -> ResultFolder:
    """Create `folder` for the files of one cell.

    What a killed run left there, a folder without `result.json`, may be used again.

    Raises:
        UserError: `folder` holds a `result.json`, or cannot be created.
    """
    _refuse_recorded(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot create the result folder {folder}: {error.strerror}.") from error
    return ResultFolder(folder, _now())


def _refuse_recorded(folder: Path) -> None:
    if (folder / RESULT).exists():
        raise UserError(
            f"{folder} already holds a {RESULT}, and results are never overwritten: choose another folder."
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
