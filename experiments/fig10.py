"""Heavy hitters by layer and head: how much the most attended tokens have (paper, Figure 10).

python -m experiments.fig10 --run
python -m experiments.fig10 --scale paper model=opt_6_7b
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.driver import Experiment, main
from experiments.recorded import NEEDS, PAPER, panels, table
from h2o_lab.stats.charts import BLACK, BLUE, GREEN, ORANGE

TICKS = (0, 0.2, 0.4, 0.6, 0.8, 1)
LEGEND: dict[str, Any] = {"loc": "upper center", "ncols": 3, "handlelength": 1, "columnspacing": 1}


def draw(frame: pd.DataFrame) -> Figure:
    return panels(frame, 3, _row)


def _row(run: dict[str, Any], axes: list[Any]) -> None:
    heads, layers = table(run, "heads"), table(run, "layers")
    for percent, colour in ((1, BLUE), (5, GREEN), (20, ORANGE)):
        by_layer = heads.groupby("layer")[f"mass_of_top_{percent}"]
        axes[0].plot(by_layer.mean(), color=colour, marker="o", markersize=3, label=f"top {percent} %")
        axes[0].fill_between(by_layer.min().index, by_layer.min(), by_layer.max(), color=colour, alpha=0.2)
    axes[0].set(xlabel="layer", ylabel="share of all attention", ylim=(0, 1.3), yticks=TICKS)
    axes[0].legend(title="of the tokens; band: heads", **LEGEND)
    grid = heads.pivot_table(index="head", columns="layer", values="gini")
    image = axes[1].imshow(grid, aspect="auto", cmap="cividis", vmin=0, vmax=1)
    axes[1].set(xlabel="layer", ylabel="KV head", title="Gini coefficient", yticks=range(len(grid)))
    axes[1].grid(visible=False)
    axes[1].figure.colorbar(image, ax=axes[1])
    for name, colour, label in (
        ("heads_overlap", ORANGE, "two heads"),
        ("texts_overlap_positions", BLUE, "two texts, by position"),
        ("texts_overlap_tokens", GREEN, "two texts, by token"),
        ("texts_overlap_all_tokens", BLACK, "two texts, all tokens"),
    ):
        if name in layers:
            axes[2].plot(layers["layer"], layers[name], color=colour, marker="o", markersize=3, label=label)
    axes[2].set(xlabel="layer", ylabel="heavy hitters in common", ylim=(0, 1.3), yticks=TICKS)
    axes[2].legend(**LEGEND | {"ncols": 2})


EXPERIMENT = Experiment("fig10", __doc__, draw=draw, paper=PAPER, needs=NEEDS, scored=False)

if __name__ == "__main__":
    main(EXPERIMENT)
