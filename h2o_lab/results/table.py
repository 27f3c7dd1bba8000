"""The table of a sweep: on the console, as Markdown and as CSV."""

import math
from itertools import count, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from h2o_lab.results.collect import CELL
from h2o_lab.results.store import write_atomic

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.table import Table

NOTHING = "–"
NO_NUMBERS = ("hydra", "results_dir", "tracker")
"""Overrides that change where results go, not what they are."""


class Row(NamedTuple):
    """One cell of a sweep, as shown."""

    group: str
    """Model and task."""
    policy: str
    """Policy, and the overrides that not every cell of the sweep shares."""
    budget: str
    metric: str
    """Name of the main metric."""
    score: str
    """Its value ± standard error, or why there is none."""
    kv: str
    """Mean resident KV cache, in KiB, MiB or GiB."""
    speed: str
    """Tokens per second."""


def sweep_table(frame: "DataFrame") -> "Table":
    """The cells of `load` grouped by model and task: score ± stderr, resident KV cache and tokens per second.

    Policy `full` comes first and only once, since its budget changes nothing. Cells without a result say why.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table()
    table.add_column("policy", overflow="fold")
    table.add_column("budget", justify="right", no_wrap=True)
    table.add_column("score", overflow="fold")
    table.add_column("KV cache", justify="right", no_wrap=True)
    table.add_column("tokens/s", justify="right", no_wrap=True)
    for group, members in groupby(_rows(frame), key=lambda row: row.group):
        rows = list(members)
        table.add_section()
        table.add_row(Text(group, style="bold"), "", Text(max(row.metric for row in rows), style="bold"))
        for row in rows:
            style = "red" if row.score.startswith(("failed", "unreadable")) else ""
            cells = [f"  {row.policy}", row.budget, row.score, row.kv, row.speed]
            table.add_row(*(Text(cell) for cell in cells), style=style)
    return table


def write_table(frame: "DataFrame", folder: Path) -> tuple[Path, Path]:
    """Store the table as `table.md`, and all of `frame` as `table.csv`, in `folder`; returns both paths.

    Existing tables stay: the next free name is taken (`table-2.md`, `table-2.csv`).

    Raises:
        UserError: `folder` cannot be written.
    """
    names = ("table" if number == 1 else f"table-{number}" for number in count(1))
    pairs = ((folder / f"{name}.md", folder / f"{name}.csv") for name in names)
    markdown, csv = next(pair for pair in pairs if not any(path.exists() for path in pair))
    write_atomic(markdown, _markdown(frame))
    write_atomic(csv, frame.to_csv(index=False))
    return markdown, csv


def _markdown(frame: "DataFrame") -> str:
    head = ("model / task", "policy", "budget", "metric", "score", "KV cache", "tokens/s")
    lines = [head, ("---",) * len(head), *_rows(frame)]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _rows(frame: "DataFrame") -> list[Row]:
    cells = sorted(frame.to_dict("records"), key=order)
    given = [set(own_overrides(cell)) for cell in cells if isinstance(cell["overrides"], list)]
    shared = set.intersection(*given) if given else set()
    rows, full = [], set()
    for cell in cells:
        row = _row(cell, shared)
        same = (row.group, row.policy, row.score)
        if same not in full:
            rows.append(row)
        if cell["policy"] == "full" and cell["status"] == "finished":
            full.add(same)
    return rows


def order(cell: dict[Any, Any]) -> tuple[Any, ...]:
    """Sorts cells by model, task, policy (`full` first) and budget; unreadable ones are last."""
    numbers = (number(cell["budget"]), number(cell["budget_tokens"]))
    return (
        cell["status"] == "unreadable",
        str(cell["model"]),
        str(cell["task"]),
        cell["policy"] != "full",
        str(cell["policy"]),
        *(-1.0 if number is None else number for number in numbers),
        str(cell["path"]),
    )


def _row(cell: dict[Any, Any], shared: set[str]) -> Row:
    finished, unreadable = cell["status"] == "finished", cell["status"] == "unreadable"
    metric = cell["main_metric"] if isinstance(cell["main_metric"], str) else ""
    return Row(
        group="unreadable" if unreadable else f"{_text(cell['model'])} / {_text(cell['task'])}",
        policy=policy_name(cell, shared),
        budget=budget_text(cell),
        metric=metric,
        score=_score(cell, metric) if finished else f"{cell['status']}: {_text(cell['error'])}",
        kv=bytes_text(number(cell["kv_bytes.resident_mean"])),
        speed=formatted(number(cell["tokens_per_second"]), ",.0f"),
    )


def policy_name(cell: dict[Any, Any], shared: set[str]) -> str:
    """The policy and the overrides that are not `shared`; of an unreadable cell, its folder."""
    if cell["status"] == "unreadable":
        return Path(str(cell["path"])).name
    return " ".join([_text(cell["policy"]), *(text for text in own_overrides(cell) if text not in shared)])


def own_overrides(cell: dict[Any, Any]) -> list[str]:
    """The overrides of a cell that no column of the table shows."""
    given = cell["overrides"] if isinstance(cell["overrides"], list) else []
    keys = {str(text): str(text).lstrip("+~").partition("=")[0] for text in given}
    return [text for text, key in keys.items() if key not in CELL and key.partition(".")[0] not in NO_NUMBERS]


def budget_text(cell: dict[Any, Any]) -> str:
    """The budget as it was given: a share, or tokens."""
    fraction, tokens = number(cell["budget"]), number(cell["budget_tokens"])
    if cell["policy"] == "full":
        return NOTHING
    return f"{tokens:.0f} tokens" if tokens is not None else formatted(fraction, "g")


def _score(cell: dict[Any, Any], metric: str) -> str:
    value, error = number(cell.get(metric)), number(cell.get(f"{metric}_stderr"))
    return formatted(value, ".3f") + (f" ± {error:.3f}" if error is not None else "")


def bytes_text(count: float | None) -> str:
    """A number of bytes in KiB, MiB or GiB."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if count is not None and count >= size:
            return f"{count / size:.2f} {unit}"
    return NOTHING if count is None else f"{count / 1024:.1f} KiB"


def formatted(value: float | None, form: str) -> str:
    """`value` in the format `form`, or the sign for nothing."""
    return NOTHING if value is None else format(value, form)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else NOTHING


def number(value: Any) -> float | None:
    """`value` unless it is missing, for which pandas has NaN, or too large to be a float."""
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    except OverflowError:
        return None
