"""Tables: our numbers with their 95 % intervals, and the paper's beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table
from rich.text import Text

from experiments.drawing import rank
from experiments.paper import numbers
from experiments.scores import CHANCE, is_share

NOTHING = "–"
PAPER = "paper"
KEYS = ("policy", "shots", "budget", "source")
"""What names a row."""


@dataclass(frozen=True)
class Shown:
    """A table as it is shown and stored.

    Attributes:
        title: of the table.
        numbers: a row per number: `source` (a model, or the paper and its model), `policy`, `shots`, `budget`,
            `column` (where it stands), `metric`, `score`, `low`, `high`, `samples`.
        notes: sentences below.
        texts: sections below the notes, in Markdown; not shown on the console.
    """

    title: str
    numbers: pd.DataFrame
    notes: tuple[str, ...] = ()
    texts: str = ""


def accuracies(frame: pd.DataFrame, title: str, *where: str) -> Shown:
    """Policies, examples and budgets down, tasks across.

    Args:
        frame: rows of an experiment.
        title: of the table.
        where: the paper's tables whose numbers stand beside ours, for the tasks that we have.
    """
    ours = pd.DataFrame(
        {
            "source": [model_name(name) for name in frame["model"]],
            "policy": frame["policy"],
            "shots": frame.get("fewshot.examples"),
            "budget": [_budget(row) for row in frame.to_dict("records")],
            "column": frame["task"],
            **{name: frame[name] for name in ("metric", "score", "low", "high", "samples")},
        }
    )
    theirs = numbers(*where)
    theirs = theirs[theirs["task"].isin(frame["task"])]
    theirs = theirs.assign(
        source=[f"{PAPER}, {model}" if model else PAPER for model in theirs["model"]],
        budget=[NOTHING if pd.isna(budget) else f"{budget:g}" for budget in theirs["budget"]],
        column=theirs["task"],
        score=theirs["value"],
    )
    shown = pd.concat([ours, theirs.reindex(columns=ours.columns)], ignore_index=True)
    return Shown(title, shown, (*_about(frame), *(_PAPER_NOTE if len(theirs) else ())))


_PAPER_NOTE = ("The paper's rows are its own numbers, in percent; it gives no intervals.",)


def _about(frame: pd.DataFrame) -> tuple[str, ...]:
    """Of each task, what is shown, of how many questions, and what a guess gets."""
    said = []
    for (task, metric), rows in frame.groupby(["task", "metric"], sort=False):
        least, most = int(rows["samples"].min()), int(rows["samples"].max())
        count = f"{most}" if least == most else f"{least} to {most}"
        guess = f", a guess gets {CHANCE[str(task)]}" if task in CHANCE else ""
        said.append(f"{task}: {metric}{', %' if is_share(metric) else ''}, {count} samples{guess}.")
    return (*said, "In brackets: 95 % intervals (Wilson's for shares, 1.96 standard errors otherwise).")


def _budget(row: dict[Any, Any]) -> str:
    if not pd.isna(row["budget"]):
        return f"{row['budget']:g}"
    return NOTHING if pd.isna(row["budget_tokens"]) else f"{row['budget_tokens']:.0f} tokens"


def model_name(name: str) -> str:
    """A model as figures and tables call it: of a folder, its last part."""
    return Path(name).name


def as_rich(shown: Shown) -> Table:
    head, lines = _cells(shown.numbers)
    table = Table(title=shown.title, caption="\n".join(shown.notes), caption_justify="left")
    for name in head:
        table.add_column(name, justify="left" if name in ("policy", "source") else "right")
    for line in lines:
        table.add_row(*map(Text, line), style="dim" if any(cell.startswith(PAPER) for cell in line) else "")
    return table


def as_markdown(shown: Shown) -> str:
    head, lines = _cells(shown.numbers)
    rule = ["---" if name in ("policy", "source") else "---:" for name in head]
    table = "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))
    notes = "\n".join(f"- {note}" for note in shown.notes)
    return f"**{shown.title}**\n\n{table}\n\n{notes}\n{shown.texts}"


def _cells(found: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Head and lines; columns that say nothing are left out."""
    columns = list(dict.fromkeys(found["column"]))
    keys = [key for key in KEYS if found[key].notna().any()]
    lines: dict[tuple[Any, ...], dict[str, str]] = {}
    for row in found.to_dict("records"):
        name = tuple(row[key] for key in keys)
        lines.setdefault(name, {})[row["column"]] = _number(row)
    order = sorted(lines, key=lambda name: _place(dict(zip(keys, name, strict=True))))
    body = [
        [_text(part) for part in name] + [lines[name].get(column, NOTHING) for column in columns] for name in order
    ]
    return [*keys, *columns], body


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    """By policy, examples and budget; the paper's line below ours."""
    shots = row.get("shots")
    source = str(row["source"])
    return (rank(row["policy"]), -1 if _missing(shots) else shots, row["budget"], source.startswith(PAPER), source)


def _number(row: dict[Any, Any]) -> str:
    if _missing(row["low"]):
        return f"{row['score']:.4g}" if not is_share(row["metric"]) else f"{row['score']:.2f}"
    form = ".1f" if is_share(row["metric"]) else ".3f"
    return f"{row['score']:{form}} ({row['low']:{form}}–{row['high']:{form}})"


def _text(value: Any) -> str:
    if _missing(value):
        return NOTHING
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
