"""Heavy hitters alone, recent tokens alone, or both (paper, Table 9).

python -m experiments.table9
python -m experiments.table9 --run
"""

from __future__ import annotations

import pandas as pd

from experiments.driver import Experiment, main
from experiments.paper import TABLE1, TABLE9
from experiments.tables import Shown, accuracies


def table(frame: pd.DataFrame) -> Shown:
    return accuracies(frame, "Heavy hitters alone, recent tokens alone, or both", TABLE9, TABLE1)


EXPERIMENT = Experiment(
    "table9",
    __doc__,
    table=table,
    paper=("model=opt_13b,opt_30b", "task=mathqa,openbookqa,piqa,winogrande", "data=hub", "task.limit=null"),
)

if __name__ == "__main__":
    main(EXPERIMENT)
