"""Tables: our numbers with their 95 % intervals, and the paper's beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table
from rich.text import Text

from experiments.cells import SHOTS
from experiments.paper import numbers
from experiments.scores import CHANCE, in_percent, scored
from h2o_lab.results.look import rank

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
            `task`, `metric`, `score`, `low`, `high`, `samples`, `column` (where it stands), `where` (in the paper).
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
        where: the paper's tables whose numbers stand beside ours, for the tasks, policies and examples that we
            have; of further tables those of the models that the first one has.
    """
    ours = _ours(frame).assign(column=frame["task"])
    theirs = _theirs(frame, where).assign(column=lambda found: found["task"])
    return _shown(title, ours, theirs, _about(frame))


def metrics(frame: pd.DataFrame, title: str, names: Sequence[str], *where: str, note: str, texts: str) -> Shown:
    """Policies down, metrics across.

    Args:
        frame, title, where: as of `accuracies`.
        names: of the metrics.
        note: a sentence about them.
        texts: sections below, in Markdown.

    Raises:
        UserError: a cell lacks a metric.
    """
    ours = pd.concat([_ours(scored(frame, name)) for name in names])
    ours = ours.assign(column=ours["metric"])
    theirs = _theirs(frame, where).assign(column=lambda found: found["metric"])
    counted = f"{', '.join(dict.fromkeys(frame['task']))}: {count(frame['samples'])} documents."
    return _shown(title, ours, theirs, (counted, note, *_INTERVALS), texts)


def _ours(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "source": [model_name(name) for name in frame["model"]],
            "policy": frame["policy"],
            "shots": frame[SHOTS],
            "budget": [kept(row) for row in frame.to_dict("records")],
            **{name: frame[name] for name in ("task", "metric", "score", "low", "high", "samples")},
        }
    )


def _theirs(frame: pd.DataFrame, where: Sequence[str]) -> pd.DataFrame:
    found = numbers(*where)
    for name, ours in (("task", frame["task"]), ("policy", frame["policy"]), ("shots", frame[SHOTS])):
        found = found[found[name].isin(ours)]
    found = found[found["model"].isin(numbers(*where[:1])["model"])]
    return found.assign(
        source=[f"{PAPER}, {model}" if model else PAPER for model in found["model"]],
        budget=[NOTHING if pd.isna(budget) else f"{budget:g}" for budget in found["budget"]],
        score=found["value"],
    )


def _shown(title: str, ours: pd.DataFrame, theirs: pd.DataFrame, notes: tuple[str, ...], texts: str = "") -> Shown:
    both = pd.concat([ours, theirs.reindex(columns=[*ours.columns, "where"])], ignore_index=True)
    both = both.astype({"shots": "Int64", "samples": "Int64"})
    if len(theirs):
        places = ", ".join(dict.fromkeys(theirs["where"]))
        notes = (*notes, f"The paper's rows are its own numbers ({places}), without intervals.")
    return Shown(title, both, notes, texts)


_INTERVALS = (
    "In brackets: 95 % intervals (Wilson's for shares of questions, the bootstrap's where a record has it, else "
    "1.96 standard errors).",
)


def _about(frame: pd.DataFrame) -> tuple[str, ...]:
    """Of each task, what is shown, of how many questions, and what a guess gets."""
    said = []
    for (task, metric), rows in frame.groupby(["task", "metric"], sort=False):
        guess = f", a guess gets {CHANCE[str(task)]}" if task in CHANCE else ""
        said.append(
            f"{task}: {metric}{', %' if in_percent(str(metric)) else ''}, {count(rows['samples'])} samples{guess}."
        )
    return (*said, *_INTERVALS)


def count(samples: pd.Series) -> str:
    """Of samples, in words: one number where all cells have as many."""
    least, most = int(samples.min()), int(samples.max())
    return f"{most}" if least == most else f"{least} to {most}"


def kept(row: dict[Any, Any]) -> str:
    """The budget of a row, in words."""
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
    shots = -1 if _missing(shots) else shots
    return (rank(row["policy"]), shots, *_amount(row["budget"]), source.startswith(PAPER), source)


def _amount(budget: str) -> tuple[bool, float]:
    """Sorts shares by size, and numbers of tokens behind them."""
    number, _, tokens = budget.partition(" ")
    return bool(tokens), 0.0 if number == NOTHING else float(number)


def _number(row: dict[Any, Any]) -> str:
    if _missing(row["low"]):
        return f"{row['score']:.4g}" if not in_percent(row["metric"]) else f"{row['score']:.2f}"
    form = ".1f" if in_percent(row["metric"]) or row["score"] >= 10 else ".3f"
    return f"{row['score']:{form}} ({row['low']:{form}}–{row['high']:{form}})"


def _text(value: Any) -> str:
    if _missing(value):
        return NOTHING
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
