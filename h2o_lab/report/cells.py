"""A stored cell as the page needs it: its record, its configuration and what is shown of its samples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from h2o_lab.config import ADDED_LATER
from h2o_lab.results.collect import COLUMNS, flatten
from h2o_lab.results.store import CONFIG, SAMPLES, STATS
from h2o_lab.results.table import number, own_overrides

KEPT = 4
"""Samples of a cell that are kept to be shown."""
VALUES = {"accuracy": "right"}
"""Where a sample holds its part of a metric under another name."""
NAMES = ("doc_id", "depth", "title", "start")
"""What tells the samples of a cell apart."""
RUN_ONLY = ("batch_tokens", "checkpoint_every")
"""Fields of a task that change how it is run, not what is measured."""
"""Subfolder of a result with statistics of its attention."""
STATS_KINDS = (".parquet", ".png")


@dataclass(frozen=True)
class Samples:
    """What `samples.jsonl` holds.

    Attributes:
        first: its first `KEPT` samples.
        names: of every sample, what tells it apart.
        values: of every sample, its part of the main metric; None where it has none.
        damaged: lines that could not be read.
    """

    first: list[dict[str, Any]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)
    damaged: int = 0


@dataclass(frozen=True)
class Cell:
    """One `result.json`, with the files beside it."""

    record: dict[str, Any]
    config: str
    """The text of `config.yaml`, empty where there is none."""
    samples: Samples
    stats: list[Path]
    """Tables and pictures of its `stats` folder."""

    @property
    def folder(self) -> Path:
        """Of the result."""
        return Path(self.record["path"])

    @property
    def status(self) -> str:
        """`finished`, `failed` or `unreadable`."""
        return str(self.record["status"])

    @property
    def finished(self) -> bool:
        """Whether it has a result."""
        return self.status == "finished"

    @property
    def readable(self) -> bool:
        """Whether it says what it is."""
        return self.status in ("finished", "failed")

    def text(self, key: str) -> str:
        """A word of the record, empty where it is missing."""
        found = self.record.get(key)
        return found if isinstance(found, str) else ""

    def section(self, key: str) -> Mapping[str, Any]:
        """A part of the record, empty where it is missing."""
        found = self.record.get(key)
        return found if isinstance(found, Mapping) else {}

    @cached_property
    def flat(self) -> dict[str, Any]:
        """The record as a row of `h2o_lab.results.load`."""
        return dict.fromkeys(COLUMNS) | flatten(self.record)

    @property
    def group(self) -> tuple[str, str]:
        """Model and task."""
        return self.text("model") or "unknown model", self.text("task") or "unknown task"

    @property
    def metric(self) -> str:
        """Name of the main metric."""
        return self.text("main_metric")

    @property
    def value(self) -> float | None:
        """Of the main metric."""
        return self.of_metric("")

    def of_metric(self, suffix: str) -> float | None:
        """What stands beside the main metric, as its `_stderr`."""
        return number(self.section("metrics").get(self.metric + suffix)) if self.finished else None

    @property
    def overrides(self) -> list[str]:
        """Those that no column of the table shows."""
        return own_overrides(self.flat)

    @cached_property
    def setting(self) -> str:
        """The same for cells that differ in what is evicted alone: model, task with its fields, and data."""
        try:
            config = yaml.load(self.config, Loader=_LOADER)
        except (yaml.YAMLError, ValueError, RecursionError):
            config = None
        config = config if isinstance(config, Mapping) else {}
        task, model = config.get("task"), config.get("model")
        fields, dtype = None, self.record.get("dtype")
        if isinstance(task, Mapping):
            fields = {
                key: value for key, value in task.items() if key not in RUN_ONLY and ADDED_LATER.get(key) != value
            }
        if isinstance(model, Mapping):
            dtype = model.get("dtype")
        told = [self.group, self.metric, self.record.get("samples"), self.record.get("content"), fields, dtype]
        return json.dumps(told, sort_keys=True, default=str)


def read_cell(record: dict[str, Any]) -> Cell:
    """The cell of a record of `h2o_lab.results.records`; files beside it that cannot be read count as missing."""
    folder = Path(record["path"])
    metric = record.get("main_metric")
    return Cell(
        record,
        _read(folder / CONFIG),
        _samples(folder / SAMPLES, VALUES.get(str(metric), str(metric))),
        _stats(folder / STATS),
    )


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _samples(file: Path, key: str) -> Samples:
    first: list[dict[str, Any]] = []
    names: list[str] = []
    values: list[float | None] = []
    damaged = 0
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    sample = dict(json.loads(line))
                except (ValueError, TypeError, RecursionError):
                    damaged += 1
                    continue
                if len(first) < KEPT:
                    first.append(sample)
                names.append(json.dumps([sample.get(name) for name in NAMES]))
                values.append(number(sample.get(key)))
    except OSError:
        pass
    return Samples(first, names, values, damaged)


def _stats(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.rglob("*") if file.suffix.lower() in STATS_KINDS)
    except OSError:
        return []
