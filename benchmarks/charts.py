"""Charts of benchmarks: lines over a size, or a dot for each name, with the command in the file's metadata."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from models import console

from h2o_lab.results.look import OTHERS, STYLE


def lines(
    rows: Sequence[dict[str, Any]], x: str, series: dict[str, str], labels: tuple[str, str], at: float | None = None
) -> Figure:
    """A line for each column of the rows, on logarithmic axes; ratios, where `at` is given, start at zero.

    Args:
        rows: what was measured; a value may be None.
        x: column of the horizontal axis.
        series: columns and their names in the legend.
        labels: of the axes.
        at: a height to mark, such as that of equal speed.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.6, 3.2))
        ax = figure.subplots()
        for (column, name), style in zip(series.items(), OTHERS, strict=False):
            known = [row for row in rows if row.get(column) is not None]
            ax.plot(
                [row[x] for row in known],
                [row[column] for row in known],
                color=style.colour,
                marker=style.marker,
                label=name,
            )
        ax.set_xscale("log", base=2)
        if at is not None:
            ax.axhline(at, color="#666666", linewidth=0.8, linestyle=":")
            ax.set_ylim(bottom=0)
        else:
            ax.set_yscale("log", base=2)
        sizes = sorted({row[x] for row in rows})
        ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
        ax.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:,.4g}"))
        ax.minorticks_off()
        ax.set(xlabel=labels[0], ylabel=labels[1])
        ax.legend()
    return figure


def dots(names: Sequence[str], numbers: Sequence[float], label: str, at: float) -> Figure:
    """A line for each name, from the top, with its number on a logarithmic axis; `at` is a number to mark."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 0.7 + 0.19 * len(names)))
        ax = figure.subplots()
        ax.axvline(at, color="#666666", linewidth=0.8, linestyle=":")
        ax.plot(numbers, range(len(names)), linestyle="", color=OTHERS[0].colour, marker="o")
        for place, number in enumerate(numbers):
            ax.annotate(
                f"{number:.2f}", (number, place), (5, 0), textcoords="offset points", fontsize=7, va="center"
            )
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
        ax.margins(x=0.12, y=0.02)
        ax.set_xlabel(label)
    return figure


def save(figure: Figure, path: str) -> None:
    """Write a chart; the file says which command drew it."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    figure.savefig(file, metadata={"Description": command})
    console.print(f"chart in {path}")
