"""How many of the kept tokens should be recent ones: a line per budget.

python -m experiments.split
python -m experiments.split --run
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from experiments.curves import curves
from experiments.driver import Experiment, main


def draw(frame: pd.DataFrame) -> Figure:
    x = 100 * frame["policy.recent_fraction"].astype(float)
    label = "budget {:g}".format
    return curves(frame.assign(x=x), "recent tokens, % of the cache", line="budget", label=label)


EXPERIMENT = Experiment(
    "split",
    __doc__,
    draw=draw,
    paper=("model=opt_30b", "task=copa,mathqa,openbookqa,piqa,rte,winogrande", "data=hub", "task.limit=null"),
    reference=True,
)

if __name__ == "__main__":
    main(EXPERIMENT)
