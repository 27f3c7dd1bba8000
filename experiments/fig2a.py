"""Sparsity of attention by layer: entries below 1 % of their row's maximum (paper, Figure 2a).

python -m experiments.fig2a --run
python -m experiments.fig2a --scale paper model=opt_6_7b
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.driver import Experiment, main
from experiments.recorded import NEEDS, PAPER, panels, table
from h2o_lab.stats import charts


def draw(frame: pd.DataFrame) -> Figure:
    return panels(frame, 1, _row, width=5)


def _row(run: dict[str, Any], axes: list[Any]) -> None:
    charts.sparsity(axes[0], table(run, "heads"))


EXPERIMENT = Experiment("fig2a", __doc__, draw=draw, paper=PAPER, needs=NEEDS, scored=False)

if __name__ == "__main__":
    main(EXPERIMENT)
