"""Where a fact is still found: accuracy by depth and budget, for each policy.

python -m h2o_lab.run -m +experiment=needle
python -m h2o_lab.run -m +experiment=kv_retrieval
python -m experiments.retrieval results
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.drawing import draw_command, newest
from h2o_lab.errors import UserError

TASKS = ("needle", "kv_retrieval", "multi_doc_qa")
AT = "accuracy_at_"


def draw(frame: pd.DataFrame) -> Figure:
    """One heat map per task (rows) and policy (columns).

    Args:
        frame: finished runs, as `h2o_lab.results.load` gives them.

    Raises:
        UserError: there is no run of a retrieval task.
    """
    runs = frame[frame["task"].isin(TASKS)]
    if runs.empty:
        raise UserError(
            f"no finished run of {', '.join(TASKS)} is there: run python -m h2o_lab.run -m +experiment=needle."
        )
    runs = newest(runs, ["model", "task", "policy", "budget", "budget_tokens"])
    tasks = [task for task in TASKS if task in set(runs["task"])]
    policies = sorted(set(runs["policy"]), key=lambda name: (name != "full", name))
    figure = Figure(figsize=(1.2 + 2.1 * len(policies), 0.6 + 2.1 * len(tasks)))
    axes = figure.subplots(len(tasks), len(policies), squeeze=False)
    for row, task in zip(axes, tasks, strict=True):
        for ax, policy in zip(row, policies, strict=True):
            cells = runs[(runs["task"] == task) & (runs["policy"] == policy)]
            _map(ax, cells.drop_duplicates("policy") if policy == "full" else cells)
            ax.set_title(f"{task}, {policy}")
    for ax in axes[-1]:
        ax.set_xlabel("depth (0: beginning)")
    for row in axes:
        row[0].set_ylabel("budget k / n")
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
    cells = cells.sort_values("budget", ascending=False)
    columns = [name for name in cells.columns if name.startswith(AT) and not name.endswith("_stderr")]
    columns = sorted((name for name in columns if cells[name].notna().any()), key=_depth)
    values = cells[columns].to_numpy(dtype=float)
    ax.imshow(values, vmin=0, vmax=1, cmap="cividis", aspect="auto")
    ax.set_xticks(range(len(columns)), [f"{_depth(name):g}" for name in columns])
    budgets = ["all" if np.isnan(budget) else f"{budget:g}" for budget in cells["budget"].astype(float)]
    ax.set_yticks(range(len(cells)), budgets)
    ax.grid(visible=False)
    for (y, x), value in np.ndenumerate(values):
        ax.text(x, y, f"{value:.1f}", ha="center", va="center", color="black" if value > 0.5 else "white")


def _depth(column: str) -> float:
    return float(column.removeprefix(AT))


if __name__ == "__main__":
    draw_command("retrieval", __doc__, draw)
