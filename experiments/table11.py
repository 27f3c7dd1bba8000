"""One set of tokens for all heads and layers, or one for each (paper, Table 11).

spatten runs one token at a time, some twenty times slower: 20 questions at the small scale, which tell little.

python -m experiments.table11
python -m experiments.table11 --run
"""

from __future__ import annotations

import pandas as pd

from experiments.driver import Experiment, main
from experiments.paper import TABLE11
from experiments.tables import Shown, accuracies


def table(frame: pd.DataFrame) -> Shown:
    return accuracies(frame, "One set of tokens for all heads and layers, or one for each", TABLE11)


EXPERIMENT = Experiment(
    "table11",
    __doc__,
    table=table,
    paper=("model=opt_30b", "task=copa,openbookqa,piqa", "data=hub", "task.limit=null"),
)

if __name__ == "__main__":
    main(EXPERIMENT)
