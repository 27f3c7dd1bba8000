"""Fewer examples with the full cache, or five with a fifth of it (paper, Table 1).

python -m experiments.table1
python -m experiments.table1 --run
"""

from __future__ import annotations

import pandas as pd

from experiments.driver import Experiment, main
from experiments.paper import TABLE1
from experiments.tables import Shown, accuracies


def table(frame: pd.DataFrame) -> Shown:
    return accuracies(frame, "Examples in the prompt, with the full cache and with h2o", TABLE1)


EXPERIMENT = Experiment(
    "table1",
    __doc__,
    table=table,
    paper=("model=opt_30b,opt_66b", "task=copa,openbookqa,piqa,winogrande", "data=hub", "task.limit=null"),
)

if __name__ == "__main__":
    main(EXPERIMENT)
