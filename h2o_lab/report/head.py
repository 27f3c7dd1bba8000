"""What some results are, taken together: when, where and of what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from h2o_lab.report.cells import Cell
from h2o_lab.report.words import cut
from h2o_lab.results.table import NO_NUMBERS

VALUES = 16
"""Of one setting that are named."""
ELSEWHERE = (*NO_NUMBERS, "resume", "quiet")
"""Settings that change nothing in the numbers."""


@dataclass(frozen=True)
class Head:
    """What stands at the top.

    Attributes:
        folders: that were read.
        when: the first start and the last end.
        cells, finished, failed, unreadable: how many.
        facts: names and values.
        varied: settings that not all cells have, with their values.
        same: settings that all have.
    """

    folders: list[str]
    when: str
    cells: int
    finished: int
    failed: int
    unreadable: int
    facts: list[tuple[str, list[str]]]
    varied: list[tuple[str, list[str]]]
    same: list[str]


def head(cells: Sequence[Cell], paths: Sequence[Path]) -> Head:
    """What stands at the top of a page about cells that were found in or below paths."""
    status = Counter(cell.status for cell in cells)
    finished, failed = status["finished"], status["failed"]
    varied, same = _settings(cells)
    return Head(
        [str(path) for path in paths],
        _when(cells),
        len(cells),
        finished,
        failed,
        len(cells) - finished - failed,
        [(name, values) for name, values in _facts(cells) if values],
        [(key, _some(values)) for key, values in varied.items()],
        same,
    )


def _settings(cells: Iterable[Cell]) -> tuple[dict[str, list[str]], list[str]]:
    """Overrides that not all cells have, as keys with their values, and those that all have."""
    given = [_overrides(cell) for cell in cells if isinstance(cell.record.get("overrides"), list)]
    same = [text for text in given[0] if all(text in other for other in given)] if given else []
    varied: dict[str, list[str]] = {}
    for text in dict.fromkeys(text for other in given for text in other if text not in same):
        key, _, value = text.partition("=")
        varied.setdefault(key, []).append(value)
    return varied, same


def _overrides(cell: Cell) -> list[str]:
    found = map(str, cell.record["overrides"])
    return [text for text in found if text.lstrip("+~").partition("=")[0].partition(".")[0] not in ELSEWHERE]


def _facts(cells: Sequence[Cell]) -> list[tuple[str, list[str]]]:
    readable = [cell for cell in cells if cell.readable]
    machines = [cell.section("environment") for cell in cells]
    packages = [machine.get("versions") for machine in machines]
    versions: dict[str, list[str]] = {}
    for package in packages:
        for name, version in package.items() if isinstance(package, dict) else ():
            versions.setdefault(str(name), []).append(str(version))
    return [
        ("model", _some(cell.group[0] for cell in readable)),
        ("task", _some(cell.group[1] for cell in readable)),
        ("data", _some(_word(cell.section("data").get("origin")) for cell in cells)),
        ("commit", _some(map(_commit, machines))),
        ("versions", [f"{name} {' and '.join(_some(found))}" for name, found in versions.items()]),
        ("device", _some(map(_device, machines))),
        ("system", _some(_word(machine.get("platform")) for machine in machines)),
    ]


def _word(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _commit(machine: Any) -> str:
    git = machine.get("git")
    if not isinstance(git, dict) or not isinstance(git.get("commit"), str):
        return ""
    return git["commit"][:12] + (" with changes" if git.get("dirty") else "")


def _device(machine: Any) -> str:
    device, cpu = _word(machine.get("device")), machine.get("cpu")
    if not device or not isinstance(cpu, dict):
        return device
    name, cores = cpu.get("model"), cpu.get("cores")
    return f"{device}: {name}, {cores} cores" if device == "cpu" else f"{device}; {name}, {cores} cores"


def _some(values: Iterable[str]) -> list[str]:
    """Different values, and how many more there are where there are too many to name."""
    found = [cut(value, 200) for value in dict.fromkeys(values) if value]
    return found if len(found) <= VALUES else [*found[:VALUES], f"… ({len(found)} in all)"]


def _when(cells: Sequence[Cell]) -> str:
    started = sorted(filter(None, (_time(cell.record.get("started")) for cell in cells)))
    ended = sorted(filter(None, (_time(cell.record.get("finished")) for cell in cells)))
    if not started or not ended:
        return ""
    first, last = started[0], ended[-1]
    day = "" if first.date() == last.date() else f"{last:%Y-%m-%d} "
    end = f"{day}{last:%H:%M}"
    return f"{first:%Y-%m-%d %H:%M} UTC" if f"{first:%H:%M}" == end else f"{first:%Y-%m-%d %H:%M} to {end} UTC"


def _time(value: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(value).astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return None
