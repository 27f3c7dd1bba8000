"""Questions about several documents under streaming and h2o (paper, Figure 9).

python -m experiments.fig9_qa data.dir=FOLDER
python -m experiments.fig9_qa --run data.dir=FOLDER
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from experiments.curves import by_budget
from experiments.driver import Experiment, main


def draw(frame: pd.DataFrame) -> Figure:
    return by_budget(frame)


EXPERIMENT = Experiment(
    "fig9_qa",
    __doc__,
    draw=draw,
    paper=("model=llama_7b", "task.size=10", "task.limit=100"),
)

if __name__ == "__main__":
    main(EXPERIMENT)
