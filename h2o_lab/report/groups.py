"""What the page says of one model on one task: a table, charts and texts side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from h2o_lab.report.cells import NAMES, Cell
from h2o_lab.report.charts import Point, Series, budget_chart, looks, memory_chart
from h2o_lab.report.scores import Difference, difference, interval
from h2o_lab.report.words import LONG, cut, decimals, signed
from h2o_lab.results.metrics import Interval, smaller_is_better
from h2o_lab.results.table import NOTHING, budget_text, bytes_text, formatted, number, order, policy_name

TEXTS = 3
"""Samples whose texts are shown side by side."""
TEXT_CELLS = 12
"""Cells whose texts are shown side by side."""


@dataclass(frozen=True)
class Shown:
    """A word of the table and the number it is sorted by."""

    text: str
    key: float | str | None = None
    note: str = ""


@dataclass(frozen=True)
class Row:
    """One cell in the table."""

    anchor: str
    status: str
    columns: list[Shown]


@dataclass(frozen=True)
class Text:
    """What one cell wrote to one prompt, or what was expected."""

    label: str
    text: str
    expected: bool = False


@dataclass(frozen=True)
class Group:
    """One model on one task.

    Attributes:
        anchor: of the group on the page.
        model, task, metric: their names.
        smaller: whether the metric is better when it is small.
        head: names of the columns.
        rows: one a cell.
        series: the lines of the charts.
        charts: SVG elements.
        texts: of some samples, their name and what the cells wrote.
        left_out: what is not shown, as sentences.
    """

    anchor: str
    model: str
    task: str
    metric: str
    smaller: bool
    head: list[str]
    rows: list[Row]
    series: list[Series]
    charts: list[str]
    texts: list[tuple[str, list[Text]]]
    left_out: list[str]


def label_cells(cells: Sequence[Cell]) -> list[str]:
    """Policies, with the overrides that not every one of these cells has."""
    given = [set(cell.overrides) for cell in cells if cell.record.get("overrides")]
    shared = set.intersection(*given) if given else set()
    return [policy_name(cell.flat, shared) for cell in cells]


def in_order(cells: Sequence[Cell]) -> list[Cell]:
    """As in the table of a sweep."""
    return sorted(cells, key=lambda cell: order(cell.flat))


def describe(anchor: str, cells: Sequence[tuple[str, Cell]], full: dict[str, Cell], *, draw: bool) -> Group:
    """The group of cells that have a model and a task in common.

    Args:
        anchor: of the group on the page.
        cells: with the anchor of each, in order.
        full: by setting, the cell with the full cache.
        draw: whether to draw charts.
    """
    labels = label_cells([cell for _, cell in cells])
    named = list(zip(labels, [cell for _, cell in cells], strict=True))
    metric = next((cell.metric for _, cell in cells if cell.metric), "")
    rows = [_row(place, label, cell, metric, full) for label, (place, cell) in zip(labels, cells, strict=True)]
    scored = [(label, cell) for label, cell in named if cell.value is not None and cell.metric == metric]
    series, axis = _series(scored)
    charts = []
    if draw and len(scored) > 1:
        charts = [budget_chart(series, metric, axis)] if any(each.policy != "full" for each in series) else []
        if any(point.memory is not None for each in series for point in each.points):
            charts.append(memory_chart(series, metric))
    texts, left_out = _texts(named)
    model, task = cells[0][1].group
    return Group(
        anchor,
        model,
        task,
        metric,
        smaller_is_better(metric),
        [
            *["policy", "budget", "k", metric or "score", "95 % interval"],
            *["minus full", "its 95 % interval", "KV cache", "of full", "tokens/s", "samples"],
        ],
        rows,
        series if charts else [],
        charts,
        texts,
        left_out,
    )


def _row(anchor: str, label: str, cell: Cell, metric: str, caches: dict[str, Cell]) -> Row:
    flat = cell.flat
    full = caches.get(cell.setting)
    apart = difference(cell, full) if full is not None and full is not cell else None
    memory, speed = number(flat["kv_bytes.resident_mean"]), number(flat["tokens_per_second"])
    whole = number(full.flat["kv_bytes.resident_mean"]) if full is not None else None
    relative = memory / whole if memory is not None and whole else None
    entries, samples = number(flat["k_mean"]), number(flat["samples"])
    budget = number(flat["budget"])
    score = decimals(cell.value)
    if (error := cell.of_metric("_stderr")) is not None:
        score += f" ± {error:.3f}"
    return Row(
        anchor,
        cell.status,
        [
            Shown(label, label, "copied from " + cell.text("reused_from") if cell.text("reused_from") else ""),
            Shown(budget_text(flat), number(flat["budget_tokens"]) if budget is None else budget),
            Shown(formatted(entries, ",.4g"), entries),
            Shown(
                score if cell.finished else cell.status, cell.value, cell.metric if cell.metric != metric else ""
            ),
            _interval(interval(cell)),
            _difference(apart),
            _interval(apart.interval if apart else None, apart),
            Shown(bytes_text(memory), memory),
            Shown(NOTHING if relative is None else f"{relative:.0%}", relative),
            Shown(formatted(speed, ",.0f"), speed),
            Shown(formatted(samples, ",.0f"), samples),
        ],
    )


def _interval(found: Interval | None, apart: Difference | None = None) -> Shown:
    if found is None:
        same = apart is not None and apart.differing == 0
        return Shown("no sample differs" if same else NOTHING, None)
    low, high = (signed(each) if apart else decimals(each) for each in found)
    return Shown(f"{low} to {high}", found.low)


def _difference(apart: Difference | None) -> Shown:
    return Shown(NOTHING) if apart is None else Shown(signed(apart.value), apart.value)


def _series(scored: list[tuple[str, Cell]]) -> tuple[list[Series], str]:
    """The lines of the charts, and what budgets are counted in: shares, tokens, or entries where both are given."""
    evicting = [cell.flat for _, cell in scored if cell.text("policy") != "full"]
    key, axis = "k_mean", "budget, entries (mean k)"
    if all(number(flat["budget"]) is not None for flat in evicting):
        key, axis = "budget", "budget, share of the tokens"
    elif all(number(flat["budget_tokens"]) is not None for flat in evicting):
        key, axis = "budget_tokens", "budget, tokens"
    newest: dict[tuple[str, float | None], tuple[str, Point]] = {}
    for label, cell in sorted(scored, key=lambda pair: pair[1].text("finished")):
        policy, flat = cell.text("policy"), cell.flat
        budget = None if policy == "full" else number(flat[key])
        point = Point(budget, number(flat["kv_bytes.resident_mean"]), cell.value or 0.0, interval(cell))
        newest[label, budget] = (policy, point)
    found = []
    for label, policy in dict.fromkeys((label, cell.text("policy")) for label, cell in scored):
        points = [point for (name, _), (_, point) in newest.items() if name == label]
        found.append((label, policy, sorted(points, key=lambda point: point.budget or 0.0)))
    return looks(found), axis


def _texts(named: list[tuple[str, Cell]]) -> tuple[list[tuple[str, list[Text]]], list[str]]:
    """What the cells wrote to their first prompts, and what is left out of it."""
    wrote = [(label, cell) for label, cell in named if any("text" in sample for sample in cell.samples.first)]
    shown = wrote[:TEXT_CELLS]
    texts: dict[str, list[Text]] = {}
    for label, cell in shown:
        budget = budget_text(cell.flat)
        name = label if budget == NOTHING else f"{label}, budget {budget}"
        for sample in cell.samples.first[:TEXTS]:
            if not isinstance(sample.get("text"), str):
                continue
            prompt = ", ".join(f"{key} {sample[key]}" for key in NAMES if key in sample)
            if prompt not in texts:
                texts[prompt] = _expected(sample)
            texts[prompt].append(Text(name, cut(sample["text"].strip(), LONG)))
    left_out = []
    if len(wrote) > len(shown):
        model, task = wrote[0][1].group
        left_out = [f"{model} / {task}: texts of the first {len(shown)} of {len(wrote)} cells are side by side."]
    return list(texts.items()), left_out


def _expected(sample: dict[str, Any]) -> list[Text]:
    found = sample.get("reference", sample.get("answers"))
    if isinstance(found, list):
        found = ", ".join(map(str, found))
    return [Text("reference", cut(found, LONG), expected=True)] if isinstance(found, str) else []
