"""Five and ten examples in the prompt (paper, Table 10).

python -m experiments.table10
python -m experiments.table10 --run
"""

from __future__ import annotations

import pandas as pd

from experiments.driver import Experiment, main
from experiments.paper import TABLE1, TABLE10
from experiments.tables import Shown, accuracies


def table(frame: pd.DataFrame) -> Shown:
    return accuracies(frame, "Five and ten examples in the prompt", TABLE10, TABLE1)


EXPERIMENT = Experiment(
    "table10",
    __doc__,
    table=table,
    paper=("model=opt_30b,opt_66b", "task=copa,mathqa,openbookqa", "data=hub", "task.limit=null"),
)

if __name__ == "__main__":
    main(EXPERIMENT)
