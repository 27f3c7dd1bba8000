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
    kept = frame["budget"].astype(float).fillna(frame["budget_tokens"].astype(float))
    return curves(frame.assign(x=x, kept=kept), "recent tokens, % of the cache", line="kept", label=_label)


def _label(kept: float) -> str:
    """A share is at most 1, and a number of tokens 2 or more."""
    return f"budget {kept:g}" if kept <= 1 else f"{kept:.0f} tokens"


EXPERIMENT = Experiment(
    "split",
    __doc__,
    draw=draw,
    paper=("model=opt_30b", "task=copa,mathqa,openbookqa,piqa,rte,winogrande", "data=hub", "task.limit=null"),
    reference=True,
    shows=("model", "task", "task.num_fewshot", "budget", "budget_tokens", "policy.recent_fraction"),
)

if __name__ == "__main__":
    main(EXPERIMENT)
