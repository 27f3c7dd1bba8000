"""Where a fact is still found: heat maps of accuracy by depth and budget, one per policy."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.tables import NOTHING, kept, model_name
from h2o_lab.results.look import rank

AT = "accuracy_at_"


def maps(frame: pd.DataFrame) -> Figure:
    """One heat map per model and task (rows) and policy (columns)."""
    rows = list(dict.fromkeys(frame[["model", "task"]].itertuples(index=False, name=None)))
    policies = sorted(set(frame["policy"]), key=rank)
    figure = Figure(figsize=(1.4 + 2.1 * len(policies), 0.7 + 2.1 * len(rows)))
    axes = figure.subplots(len(rows), len(policies), squeeze=False)
    for (model, task), beside in zip(rows, axes, strict=True):
        here = frame[(frame["model"] == model) & (frame["task"] == task)]
        for ax, policy in zip(beside, policies, strict=True):
            _map(ax, here[here["policy"] == policy])
            ax.set_title(policy)
        beside[0].set_ylabel(f"{model_name(model)}, {task}\nbudget")
    for ax in axes[-1]:
        ax.set_xlabel("depth (0: beginning)")
    image = next(ax.images[0] for ax in axes.flat if ax.images)
    bar = figure.colorbar(image, ax=axes, shrink=0.8)
    bar.set_label("questions answered")
    return figure


def _map(ax: Axes, cells: pd.DataFrame) -> None:
    """Accuracy by depth (columns) and budget (rows, the smallest at the bottom)."""
    if cells.empty:
        ax.text(0.5, 0.5, "not run", ha="center", va="center", transform=ax.transAxes)
        ax.set(xticks=[], yticks=[])
        return
    cells = cells.sort_values(["budget", "budget_tokens"], ascending=False)
    columns = [name for name in cells.columns if name.startswith(AT) and not name.endswith("_stderr")]
    columns = sorted((name for name in columns if cells[name].notna().any()), key=_depth)
    values = cells[columns].to_numpy(dtype=float)
    ax.imshow(values, vmin=0, vmax=1, cmap="cividis", aspect="auto")
    ax.set_xticks(range(len(columns)), [f"{_depth(name):g}" for name in columns])
    budgets = [kept(row) for row in cells.to_dict("records")]
    ax.set_yticks(range(len(cells)), ["all" if budget == NOTHING else budget for budget in budgets])
    ax.grid(visible=False)
    for (y, x), value in np.ndenumerate(values):
        ax.text(x, y, f"{value:.1f}", ha="center", va="center", color="black" if value > 0.5 else "white")


def _depth(column: str) -> float:
    return float(column.removeprefix(AT))
