"""Summaries under streaming and h2o (paper, Figure 9).

python -m experiments.fig9
python -m experiments.fig9 --run
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from experiments.curves import by_budget
from experiments.driver import Experiment, main


def draw(frame: pd.DataFrame) -> Figure:
    return by_budget(frame)


EXPERIMENT = Experiment(
    "fig9",
    __doc__,
    draw=draw,
    paper=("model=llama_7b", "data=hub", "task.limit=1000"),
)

if __name__ == "__main__":
    main(EXPERIMENT)
