"""How many heavy hitters a fixed window of recent tokens needs.

python -m experiments.heavy_count
python -m experiments.heavy_count --run
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from experiments.curves import curves
from experiments.driver import Experiment, main


def draw(frame: pd.DataFrame) -> Figure:
    x = frame["budget_tokens"].astype(float) - frame["policy.recent_tokens"].astype(float)
    recent = frame["policy.recent_tokens"].max()
    figure = curves(frame.assign(x=x), f"heavy hitters per head, beside {recent:.0f} recent tokens")
    for ax in figure.axes:
        ax.set_xscale("symlog", base=2, linthresh=1)
        ax.set_xlim(-0.3, 1.3 * x.max())
        ax.xaxis.set_major_formatter("{x:.0f}")
    return figure


EXPERIMENT = Experiment(
    "heavy_count",
    __doc__,
    draw=draw,
    paper=("model=opt_30b", "task=copa,mathqa,openbookqa,piqa,rte,winogrande", "data=hub", "task.limit=null"),
    reference=True,
    needs=("budget=null",),
)

if __name__ == "__main__":
    main(EXPERIMENT)
