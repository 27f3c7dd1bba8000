"""Figures of curves: a panel per task, model and number of examples, a line per policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from experiments.cells import SHOTS
from experiments.paper import numbers
from experiments.scores import CHANCE, METRICS, TASKS, in_percent
from experiments.tables import count, model_name
from h2o_lab.errors import UserError
from h2o_lab.results.look import OTHERS, Look, look, rank

BUDGET = "KV cache budget, % of the prompt"
TOKENS = "KV cache budget, tokens"
DODGE = 0.006
"""Between the points of two lines at the same place, as a share of the axis: bars are told apart."""
MARGIN = 0.03
"""Beside the axis's ends, 0 and the largest value, as a share of it."""
PAPER_MODEL = "OPT-30B"
"""The model of the paper whose numbers are drawn."""
ACROSS = 3
"""Most panels beside each other; more tasks go on below."""
WIDTH, HEIGHT = 2.7, 2.4
"""Of a panel, in inches."""


def by_budget(frame: pd.DataFrame, *where: str) -> Figure:
    """The score over the budget, a line per policy; the full cache and a guess are levels.

    Args:
        frame: rows of an experiment.
        where: the paper's tables whose numbers are drawn as hollow points, where budgets are shares.

    Raises:
        UserError: budgets are shares of some cells, and numbers of tokens of others.
    """
    shares, tokens = frame["budget"].astype(float), frame["budget_tokens"].astype(float)
    if tokens.isna().all():
        return curves(frame.assign(x=100 * shares), BUDGET, where=where)
    if shares.notna().any():
        raise UserError("shares and numbers of tokens are no one axis: give budget or budget_tokens.")
    return curves(frame.assign(x=tokens), TOKENS)


def curves(
    frame: pd.DataFrame,
    xlabel: str,
    *,
    line: str = "policy",
    label: Callable[[Any], str] = str,
    where: Sequence[str] = (),
) -> Figure:
    """The score over `x`, a panel per task, model and number of examples.

    Args:
        frame: rows of an experiment with a column `x`; rows of the full cache need none.
        xlabel: of the axis.
        line: the column whose values are lines.
        label: their names in the legend.
        where: as of `by_budget`.

    Raises:
        UserError: a cell has no place on the axis.
    """
    lost = frame[(frame["policy"] != "full") & ~np.isfinite(frame["x"])]
    if len(lost):
        raise UserError(f"{lost['path'].iloc[0]} cannot be drawn: it has no {xlabel}.")
    frame = frame.assign(**{SHOTS: frame[SHOTS].astype(float).fillna(0)})
    downs = ["model"] + ([SHOTS] if frame[SHOTS].nunique() > 1 else [])
    rows = list(dict.fromkeys(frame[downs].itertuples(index=False, name=None)))
    tasks = list(dict.fromkeys(frame["task"]))
    looks = _looks(frame[frame["policy"] != "full"], line)
    across = 2 if len(tasks) == 4 else min(len(tasks), ACROSS)
    lines = math.ceil(len(tasks) / across)
    figure = Figure(figsize=(0.5 + WIDTH * max(across, 1.3), 0.7 + HEIGHT * len(rows) * lines))
    axes = figure.subplots(len(rows) * lines, across, squeeze=False, sharex=True)
    for row, beside in zip(rows, axes.reshape(len(rows), lines * across), strict=True):
        here = frame[(frame[downs] == list(row)).all(axis=1)]
        for ax in beside[len(tasks) :]:
            ax.remove()
        for task, ax in zip(tasks, beside, strict=False):
            cells = here[here["task"] == task]
            if cells.empty:
                ax.text(0.5, 0.5, "not run", ha="center", va="center", transform=ax.transAxes)
                ax.set_title(TASKS.get(task, task))
                continue
            _lines(ax, cells, line, looks, label)
            _levels(ax, cells, task)
            _papers(ax, task, cells[SHOTS].iloc[0], looks, where)
            metric = METRICS.get(cells["metric"].iloc[0], cells["metric"].iloc[0])
            ax.set_title(f"{TASKS.get(task, task)}, {metric}, n = {count(cells['samples'])}")
        for ax in beside[max(0, len(tasks) - across) : len(tasks)]:
            ax.tick_params(labelbottom=True)
        for ax in beside[: len(tasks) : across]:
            ax.set_ylabel(_ylabel(row, here["metric"]))
    ends = [float(ax.dataLim.x1) for ax in figure.axes]
    right = max([end for end in ends if math.isfinite(end)], default=1.0)
    axes[0, 0].set_xlim(-MARGIN * right, (1 + MARGIN) * right)
    if len(tasks) > 1:
        figure.supxlabel(xlabel, fontsize="medium")
    else:
        axes[-1, 0].set_xlabel(xlabel)
    _legend(figure)
    return figure


def _looks(frame: pd.DataFrame, line: str) -> dict[Any, Look]:
    values = list(dict.fromkeys(frame[line]))
    if line == "policy":
        return {value: look(value) for value in sorted(values, key=rank)}
    return {value: OTHERS[place % len(OTHERS)] for place, value in enumerate(sorted(values))}


def _levels(ax: Axes, cells: pd.DataFrame, task: str) -> None:
    """The full cache with its interval, and a guess."""
    full = cells[cells["policy"] == "full"]
    if len(full):
        cell = full.iloc[0]
        ax.axhline(cell["score"], color="black", linewidth=1, label="full cache, 95 % band", zorder=1)
        if np.isfinite(cell["low"]):
            ax.axhspan(cell["low"], cell["high"], color="black", alpha=0.07, linewidth=0, zorder=0)
    if task in CHANCE and in_percent(cells["metric"].iloc[0]):
        ax.axhline(CHANCE[task], color="#777777", linewidth=1, linestyle=(0, (1, 2)), label="chance", zorder=1)


def _lines(ax: Axes, cells: pd.DataFrame, line: str, looks: dict[Any, Look], label: Callable[[Any], str]) -> None:
    for place, (value, style) in enumerate(looks.items()):
        points = cells[(cells[line] == value) & (cells["policy"] != "full")].sort_values("x")
        if points.empty:
            continue
        dodge = DODGE * cells["x"].max() * (place - (len(looks) - 1) / 2)
        bars = np.array([points["score"] - points["low"], points["high"] - points["score"]], dtype=float)
        ax.errorbar(
            points["x"] + dodge,
            points["score"],
            yerr=bars,
            color=style.colour,
            marker=style.marker,
            linestyle=style.line,
            elinewidth=0.8,
            label=label(value),
        )


def _papers(ax: Axes, task: str, shots: float, looks: dict[Any, Look], where: Sequence[str]) -> None:
    """The paper's numbers at this many examples, hollow: of one model, else those without one."""
    found = numbers(*where)
    found = found[(found["task"] == task) & (found["shots"] == shots) & found["policy"].isin([*looks, "full"])]
    model = PAPER_MODEL if (found["model"] == PAPER_MODEL).any() else ""
    found = found[found["model"] == model]
    for number in found.itertuples():
        style = look(str(number.policy))
        ax.plot(
            100 if number.policy == "full" else 100 * float(str(number.budget)),
            float(str(number.value)),
            marker=style.marker,
            markerfacecolor="white",
            markeredgecolor=style.colour,
            markersize=6,
            linestyle="none",
            zorder=5,
        )
    if len(found):
        hollow: dict[str, Any] = {"marker": "o", "markerfacecolor": "white", "linestyle": "none"}
        ax.plot([], [], label=f"paper{', ' if model else ''}{model} (hollow)", color="#777777", **hollow)


def _ylabel(row: Sequence[Any], metrics: pd.Series) -> str:
    what = "accuracy, %" if metrics.map(in_percent).all() else METRICS.get(metrics.iloc[0], metrics.iloc[0])
    examples = [f"{row[1]:.0f} example{'' if row[1] == 1 else 's'}"] if len(row) > 1 else []
    return f"{', '.join([model_name(row[0]), *examples])}\n{what}"


def _legend(figure: Figure) -> None:
    """One for all panels, above them."""
    found: dict[str, Any] = {}
    for ax in figure.axes:
        pairs = list(zip(*ax.get_legend_handles_labels(), strict=True))
        for handle, label in sorted(pairs, key=lambda pair: not isinstance(pair[0], ErrorbarContainer)):
            found.setdefault(label, handle)
    columns = max(2, int(figure.get_figwidth() // 1.6))
    figure.legend(found.values(), found.keys(), loc="outside upper center", ncols=columns)
