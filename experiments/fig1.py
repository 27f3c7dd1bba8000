"""Accuracy against memory: the full cache, patterns, windows and h2o (paper, Figure 1).

python -m experiments.fig1
python -m experiments.fig1 --run
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from experiments.cells import SHOTS
from experiments.curves import curves
from experiments.driver import Experiment, main
from h2o_lab.errors import UserError

HELD = "kv_bytes.resident_mean"


def draw(frame: pd.DataFrame) -> Figure:
    """The score over the KV cache that a text holds at its end, relative to that of the full cache.

    Cells without the full cache beside them have no place.

    Raises:
        UserError: none has.
    """
    keys = ["model", "task", SHOTS]
    frame = frame.assign(**{SHOTS: frame[SHOTS].astype(float).fillna(0)})
    full = frame[frame["policy"] == "full"].drop_duplicates(keys).set_index(keys)[HELD]
    whole = pd.Series([full.get(tuple(row), float("nan")) for row in frame[keys].to_numpy()], frame.index)
    held = frame.assign(x=100 * frame[HELD] / whole)[whole.notna()]
    if held.empty:
        raise UserError("fig1 shows bytes relative to the full cache, which is not there: add policy=full.")
    return curves(held, "KV cache held, % of the full cache's bytes", label=_label)


def _label(policy: str) -> str:
    return f"{policy} (masks, keeps all)" if policy == "topk" else policy


EXPERIMENT = Experiment(
    "fig1",
    __doc__,
    draw=draw,
    paper=(
        "model=opt_30b",
        "policy=full,h2o,local,streaming,strided,fixed,topk,spatten",
        "task=copa,mathqa,openbookqa,piqa,rte,winogrande",
        "data=hub",
        "task.limit=null",
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
