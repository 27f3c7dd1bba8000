"""An overview of recorded attention: sparsity, sorted attention, overlap over time, the tail.

python -m experiments.attention --run
python -m experiments.attention --scale paper model=opt_6_7b
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.driver import Experiment, main
from experiments.recorded import NEEDS, PAPER, panels, table
from h2o_lab.stats import charts


def draw(frame: pd.DataFrame) -> Figure:
    return panels(frame, 4, _row)


def _row(run: dict[str, Any], axes: list[Any]) -> None:
    charts.sparsity(axes[0], table(run, "heads"))
    charts.sorted_attention(axes[1], table(run, "curves"))
    charts.over_time(axes[2], table(run, "times"), "overlap_with_final", "heavy hitters that stay to the end")
    charts.tail(axes[3], table(run, "values"), table(run, "layers"))


EXPERIMENT = Experiment("attention", __doc__, draw=draw, paper=PAPER, needs=NEEDS, scored=False)

if __name__ == "__main__":
    main(EXPERIMENT)
