"""Accuracy over the budget without an example and with one (paper, Figure 8).

python -m experiments.fig8
python -m experiments.fig8 --run
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from experiments.curves import by_budget
from experiments.driver import Experiment, main
from experiments.paper import TABLE1


def draw(frame: pd.DataFrame) -> Figure:
    return by_budget(frame, TABLE1)


EXPERIMENT = Experiment(
    "fig8",
    __doc__,
    draw=draw,
    paper=("model=llama_7b", "task=copa,openbookqa,piqa,winogrande", "data=hub", "task.limit=null"),
)

if __name__ == "__main__":
    main(EXPERIMENT)
