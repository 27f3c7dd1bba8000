"""Which of two pairs of identifiers is still found: accuracy by depth and budget.

python -m experiments.kv_retrieval
python -m experiments.kv_retrieval --run
"""

from __future__ import annotations

from experiments.driver import Experiment, main
from experiments.heat import maps

EXPERIMENT = Experiment(
    "kv_retrieval",
    __doc__,
    draw=maps,
    paper=("model=llama_7b", "task.limit=100"),
    needs=("task.kind=retrieval",),
    scored=False,
)

if __name__ == "__main__":
    main(EXPERIMENT)
