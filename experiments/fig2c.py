"""Accuracy where the tokens with the most attention are removed (paper, Figure 2c).

python -m experiments.fig2c
python -m experiments.fig2c --run
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from experiments.curves import curves
from experiments.driver import Experiment, main


def draw(frame: pd.DataFrame) -> Figure:
    x = 100 * frame["budget"].astype(float)
    return curves(frame.assign(x=x), "heavy hitters removed, % of the prompt")


EXPERIMENT = Experiment(
    "fig2c",
    __doc__,
    draw=draw,
    paper=(
        "model=opt_13b,opt_30b",
        "task=copa,mathqa,openbookqa,piqa,rte,winogrande",
        "data=hub",
        "task.limit=null",
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
