"""How long a heavy hitter stays one, and whether layers agree (paper, Figure 2d and section 3.2).

python -m experiments.overlap --run
python -m experiments.overlap --scale paper model=opt_6_7b
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.driver import Experiment, main
from experiments.recorded import NEEDS, PAPER, panels, table
from h2o_lab.stats import charts
from h2o_lab.stats.charts import BLACK


def draw(frame: pd.DataFrame) -> Figure:
    return panels(frame, 3, _row)


def _row(run: dict[str, Any], axes: list[Any]) -> None:
    charts.over_time(axes[0], table(run, "times"), "overlap_with_final", "local heavy hitters that are global ones")
    persistence = table(run, "persistence").groupby(["since", "at"])["overlap"].mean().reset_index()
    since = sorted(persistence["since"].unique())
    for place, start in enumerate(since[:-1]):
        line = persistence[persistence["since"] == start]
        colour = charts.colour_of(place, len(since))
        axes[1].plot(line["at"], line["overlap"], color=colour, marker="o", markersize=3, label=f"{start:.2f}")
    axes[1].set(xlabel="share of the text read", ylabel="of those heavy at the start of the line", ylim=(0, 1.02))
    axes[1].legend(title="since", ncols=2, loc="lower left")
    for ax in axes[:2]:
        ax.axhline(_chance(run), color=BLACK, linestyle=":", linewidth=1, label="chance")
    grid = table(run, "pairs").pivot_table(index="layer", columns="other", values="overlap").to_numpy()
    image = axes[2].imshow(grid, cmap="cividis", vmin=0, vmax=1)
    axes[2].figure.colorbar(image, ax=axes[2])
    others = grid[~np.eye(len(grid), dtype=bool)]
    axes[2].set(xlabel="layer", ylabel="layer", title=f"heavy hitters in common, mean {others.mean():.2f}")
    axes[2].grid(visible=False)


def _chance(run: dict[str, Any]) -> float:
    """What two random sets of heavy hitters would have in common."""
    return float(run["stats.heavy_share"])


EXPERIMENT = Experiment("overlap", __doc__, draw=draw, paper=PAPER, needs=NEEDS, scored=False)

if __name__ == "__main__":
    main(EXPERIMENT)
