"""Is it the choice of tokens or their number? Random eviction at equal size.

python -m experiments.random
python -m experiments.random --run
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from experiments.curves import by_budget
from experiments.driver import Experiment, main


def draw(frame: pd.DataFrame) -> Figure:
    return by_budget(frame)


EXPERIMENT = Experiment(
    "random",
    __doc__,
    draw=draw,
    paper=("model=opt_30b", "task=copa,mathqa,openbookqa,piqa,rte,winogrande", "data=hub", "task.limit=null"),
)

if __name__ == "__main__":
    main(EXPERIMENT)
