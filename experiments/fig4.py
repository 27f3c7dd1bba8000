"""Accuracy over the budget: the full cache, h2o and local (paper, Figure 4).

python -m experiments.fig4
python -m experiments.fig4 --run
python -m experiments.fig4 --scale paper model=opt_6_7b
python -m experiments.fig4 task=copa,piqa data=folder data.dir=FOLDER
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from experiments.curves import by_budget
from experiments.driver import Experiment, main
from experiments.paper import TABLE1, TABLE9


def draw(frame: pd.DataFrame) -> Figure:
    return by_budget(frame, TABLE1, TABLE9)


EXPERIMENT = Experiment(
    "fig4",
    __doc__,
    draw=draw,
    paper=(
        "model=opt_6_7b,opt_13b,opt_30b,opt_66b,llama_7b,llama_13b,llama_30b,gpt_neox_20b",
        "task=copa,mathqa,openbookqa,piqa,rte,winogrande",
        "data=hub",
        "task.limit=null",
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
