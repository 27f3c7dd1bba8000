"""Which tokens are heavy hitters: their kind, and their place in the text (paper, appendix B).

python -m experiments.heavy_tokens --run
python -m experiments.heavy_tokens --scale paper model=opt_6_7b
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.driver import Experiment, main
from experiments.recorded import NEEDS, PAPER, panels, table
from h2o_lab.stats.charts import BLACK, BLUE, ORANGE
from h2o_lab.stats.words import KINDS


def draw(frame: pd.DataFrame) -> Figure:
    return panels(frame, 3, _row)


def _row(run: dict[str, Any], axes: list[Any]) -> None:
    kinds = table(run, "kinds").groupby("kind").mean(numeric_only=True).reindex(KINDS[::-1]).dropna()
    chance = float(run["stats.heavy_share"])
    axes[0].barh(kinds.index, kinds["heavy"], color=ORANGE)
    axes[0].axvline(chance, color=BLACK, linestyle=":", linewidth=1)
    axes[0].set(xlabel="share that are heavy hitters (dotted: all tokens)", xlim=(0, 1))
    axes[1].barh(kinds.index, kinds["attention"], color=BLUE)
    axes[1].axvline(1, color=BLACK, linestyle=":", linewidth=1)
    axes[1].set(xlabel="attention received (mean of all tokens: 1)", xscale="log")
    axes[1].tick_params(labelleft=False)
    places = table(run, "places").groupby("place")["heavy"]
    axes[2].plot(places.mean(), color=ORANGE, marker="o", markersize=3, label="mean of layers")
    axes[2].fill_between(
        places.min().index, places.min(), places.max(), color=ORANGE, alpha=0.2, label="all layers"
    )
    axes[2].axhline(chance, color=BLACK, linestyle=":", linewidth=1)
    axes[2].set(xlabel="place in the text (0: beginning)", ylabel="share that are heavy hitters", ylim=(0, 1))
    axes[2].legend(loc="upper right")


EXPERIMENT = Experiment("heavy_tokens", __doc__, draw=draw, paper=PAPER, needs=NEEDS, scored=False)

if __name__ == "__main__":
    main(EXPERIMENT)
