"""Fixed patterns with and without heavy hitters (paper, Table 2).

python -m experiments.table2
python -m experiments.table2 --run
"""

from __future__ import annotations

import pandas as pd

from experiments.driver import Experiment, main
from experiments.paper import TABLE2
from experiments.tables import Shown, accuracies


def table(frame: pd.DataFrame) -> Shown:
    return accuracies(frame, "Sparse Transformer's patterns with and without heavy hitters", TABLE2)


EXPERIMENT = Experiment(
    "table2",
    __doc__,
    table=table,
    paper=("model=opt_30b", "task=copa,openbookqa,piqa,winogrande", "data=hub", "task.limit=null"),
)

if __name__ == "__main__":
    main(EXPERIMENT)
