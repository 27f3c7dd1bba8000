"""Where in a text a number is still found: accuracy by depth and budget.

python -m experiments.needle
python -m experiments.needle --run
"""

from __future__ import annotations

from experiments.driver import Experiment, main
from experiments.heat import maps

EXPERIMENT = Experiment(
    "needle",
    __doc__,
    draw=maps,
    paper=("model=llama_7b", "task.limit=100"),
    needs=("task.kind=retrieval",),
    scored=False,
)

if __name__ == "__main__":
    main(EXPERIMENT)
