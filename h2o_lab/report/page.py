"""The page: everything that is known of some results, as one HTML text."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from h2o_lab.report.cells import Cell, read_cell
from h2o_lab.report.groups import Group, describe, in_order, label_cells
from h2o_lab.report.head import Head, head
from h2o_lab.report.scores import full_caches
from h2o_lab.report.words import cut, facts, sample_text
from h2o_lab.results import originals, records
from h2o_lab.results.table import NOTHING, budget_text

FOLDER = Path(__file__).parent
TEMPLATE = "page.html.j2"
GENERATOR = "python -m h2o_lab.report"
"""How the page says in its head what made it."""
SAMPLES = (3, 1, 0)
"""Samples shown of each cell: the first of these whose characters are likely to fit."""
CHARACTERS = 2_500_000
"""For the samples of all cells together."""
SAMPLE = 1500
"""Characters of a typical sample that is shown."""
FOLDED = 1000
"""Cells that have a folded section."""
CHARTS = 40
"""Tasks that have charts."""
TRACE = 6000
"""Characters of a traceback, from its end, and of a configuration, from its beginning."""


@dataclass(frozen=True)
class Folded:
    """The section of one cell."""

    anchor: str
    label: str
    score: str
    folder: str
    copied_from: str
    facts: list[tuple[str, list[tuple[str, str]]]]
    overrides: str
    config: str
    samples: list[str]
    of: int
    damaged: int
    stats: list[tuple[str, str]]


@dataclass(frozen=True)
class Failure:
    """A cell without a result."""

    name: str
    status: str
    folder: str
    reason: str
    traceback: str


def page(paths: Sequence[Path], out: Path, title: str | None) -> str:
    """The HTML of a page about the results in or below `paths`.

    Args:
        paths: folders, or single `result.json`.
        out: where the page is going to lie, from which it links.
        title: its title; by default what lies in the paths.

    Raises:
        UserError: a path does not exist, or there is no result below any of them.
    """
    everything = records(*paths)
    kept = originals(everything)
    cells = in_order([read_cell(record) for record in kept])
    readable = [cell for cell in cells if cell.readable]
    unknown = [cell for cell in cells if not cell.readable]
    anchors = {id(cell): f"cell-{number}" for number, cell in enumerate(readable)}
    full = full_caches(readable)
    members = [list(found) for _, found in groupby(readable, key=lambda cell: cell.group)]
    groups = [
        describe(f"task-{number}", [(anchors[id(cell)], cell) for cell in found], full, draw=number < CHARTS)
        for number, found in enumerate(members)
    ]
    count = next((number for number in SAMPLES if number * len(readable) * SAMPLE <= CHARACTERS), 0)
    folded = [[_folded(each, anchors, out, count) for each in _labelled(found)] for found in members]
    kept_paths = {record["path"] for record in kept}
    copies = [record for record in everything if record["path"] not in kept_paths]
    return _render(
        title=title or f"{', '.join(_name(path) for path in paths)}: KV-cache eviction",
        head=head(cells, paths),
        groups=groups,
        folded=_within(folded),
        failures=[
            _failure(*each) for found in [*members, unknown] for each in _labelled(found) if not each[1].finished
        ],
        copies=[(record["path"], str(record["reused_from"])) for record in copies],
        left_out=_left_out(groups, members, count),
    )


def _render(*, head: Head, groups: list[Group], **given: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    return made.get_template(TEMPLATE).render(
        head=head,
        groups=groups,
        generator=GENERATOR,
        now=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        style=(FOLDER / "page.css").read_text(encoding="utf-8"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        **given,
    )


def _name(path: Path) -> str:
    folder = path if path.is_dir() else path.parent
    return folder.resolve().name


def _labelled(cells: Iterable[Cell]) -> list[tuple[str, Cell]]:
    cells = list(cells)
    return list(zip(label_cells(cells), cells, strict=True))


def _folded(labelled: tuple[str, Cell], anchors: dict[int, str], out: Path, count: int) -> Folded:
    label, cell = labelled
    record = cell.record
    budget = budget_text(cell.flat)
    sections = ("metrics", "k", "kv_bytes", "tokens", "seconds", "peak_memory_bytes", "fewshot", "data")
    told = [(name, facts(cell.section(name), name)) for name in sections]
    plain = ("started", "finished", "cell", "seed", "prefill", "positions", "executor", "resumed_batches")
    told.insert(0, ("run", facts({key: record[key] for key in plain if key in record})))
    told.append(("environment", facts(cell.section("environment"))))
    overrides = record.get("overrides")
    return Folded(
        anchors[id(cell)],
        label if budget == NOTHING else f"{label}, budget {budget}",
        f"{cell.metric} {cell.value:.3f}" if cell.value is not None else cell.status,
        str(cell.folder),
        cell.text("reused_from"),
        [(name, values) for name, values in told if values],
        " ".join(map(str, overrides)) if isinstance(overrides, list) else "",
        cut(cell.config.rstrip(), TRACE),
        [sample_text(sample) for sample in cell.samples.first[:count]],
        len(cell.samples.names),
        cell.samples.damaged,
        [(quote(_link(file, out)), file.name) for file in cell.stats],
    )


def _link(file: Path, out: Path) -> str:
    return Path(os.path.relpath(file.resolve(), out.resolve().parent)).as_posix()


def _failure(label: str, cell: Cell) -> Failure:
    trace = cell.text("traceback")
    name = label
    if cell.status == "failed":
        budget = budget_text(cell.flat)
        name = " / ".join([*cell.group, label if budget == NOTHING else f"{label}, budget {budget}"])
    reason = cell.text("error") or f"its status is {cut(cell.status, 100)}, which this version does not know"
    return Failure(
        name,
        cell.status,
        str(cell.folder),
        cut(reason, TRACE),
        trace if len(trace) <= TRACE else f"…\n{trace[-TRACE:]}",
    )


def _within(folded: list[list[Folded]]) -> list[list[Folded]]:
    """The first `FOLDED` sections."""
    left = FOLDED
    kept = []
    for group in folded:
        kept.append(group[: max(0, left)])
        left -= len(group)
    return kept


def _left_out(groups: list[Group], members: list[list[Cell]], count: int) -> list[str]:
    """What the page does not show, as sentences."""
    cells = sum(map(len, members))
    said = [sentence for group in groups for sentence in group.left_out]
    if any(len(cell.samples.names) > count for found in members for cell in found):
        shown = (
            "no samples are"
            if count == 0
            else "the first sample is"
            if count == 1
            else f"the first {count} samples are"
        )
        said.insert(0, f"Of each cell {shown} shown; samples.jsonl has all of them. Long texts and lists are cut.")
    if len(groups) > CHARTS:
        said.append(f"Charts are drawn for the first {CHARTS} of {len(groups)} tasks.")
    if cells > FOLDED:
        said.append(f"The first {FOLDED} of {cells} cells have a section of their own; the tables have all.")
    return said
