"""ROUGE of summaries over the budget: the full cache, h2o and local (paper, Figure 4).

python -m experiments.fig4_summaries
python -m experiments.fig4_summaries --run
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from experiments.curves import by_budget
from experiments.driver import Experiment, main


def draw(frame: pd.DataFrame) -> Figure:
    return by_budget(frame)


EXPERIMENT = Experiment(
    "fig4_summaries",
    __doc__,
    draw=draw,
    paper=("model=llama_7b,llama_13b,llama_30b,gpt_neox_20b", "task=xsum,cnn_dm", "data=hub", "task.limit=1000"),
)

if __name__ == "__main__":
    main(EXPERIMENT)
