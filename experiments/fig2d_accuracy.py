"""Accuracy with heavy hitters by past attention, or by all of it (paper, Figure 2d).

python -m experiments.fig2d_accuracy
python -m experiments.fig2d_accuracy --run
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from experiments.curves import by_budget
from experiments.driver import Experiment, main


def draw(frame: pd.DataFrame) -> Figure:
    return by_budget(frame)


EXPERIMENT = Experiment(
    "fig2d_accuracy",
    __doc__,
    draw=draw,
    paper=("model=opt_30b", "task=copa,mathqa,openbookqa,piqa,rte,winogrande", "data=hub", "task.limit=null"),
)

if __name__ == "__main__":
    main(EXPERIMENT)
