"""The keys with the largest logits, with and without heavy hitters (paper, Table 8).

python -m experiments.table8
python -m experiments.table8 --run
"""

from __future__ import annotations

import pandas as pd

from experiments.driver import Experiment, main
from experiments.paper import TABLE8
from experiments.tables import Shown, accuracies


def table(frame: pd.DataFrame) -> Shown:
    return accuracies(frame, "Top-k attention with and without heavy hitters", TABLE8)


EXPERIMENT = Experiment(
    "table8",
    __doc__,
    table=table,
    paper=("model=opt_30b", "task=copa,openbookqa,piqa,winogrande", "data=hub", "task.limit=null"),
)

if __name__ == "__main__":
    main(EXPERIMENT)
