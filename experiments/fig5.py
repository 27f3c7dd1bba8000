"""A whole book as one stream: perplexity and memory along it (paper, Figure 5).

python -m experiments.fig5
python -m experiments.fig5 --run
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.driver import Experiment, main
from experiments.tables import kept, model_name
from h2o_lab.results import load_samples
from h2o_lab.results.look import look

LINES = ("-", "--", ":", "-.")
STRETCH = 5000
"""Tokens that one point of a curve stands for."""


def draw(frame: pd.DataFrame) -> Figure:
    """Curves of perplexity (above) and of the memory of the process (below) over the position in the book.

    A pair of panels for each model and book.
    """
    runs = frame.assign(kept=[kept(row) for row in frame.to_dict("records")])
    runs = runs.sort_values(["budget_tokens", "budget", "policy"])
    budgets = list(dict.fromkeys(runs["kept"]))
    curves: dict[tuple[str, str], list[tuple[Any, pd.DataFrame]]] = {}
    for _, run in runs.iterrows():
        samples = load_samples(run["path"])
        for title, book in samples.groupby("title", sort=False):
            curves.setdefault((model_name(run["model"]), str(title)), []).append((run, book))
    figure = Figure(figsize=(0.5 + 6 * len(curves), 5))
    axes = figure.subplots(2, len(curves), sharex="col", height_ratios=(3, 1), squeeze=False)
    for ((model, title), books), (above, below) in zip(curves.items(), axes.T, strict=True):
        for run, book in books:
            points = book.assign(nats=np.log(book["perplexity"])).groupby((book["tokens"] - 1) // STRETCH)
            position = points["tokens"].max()
            line = LINES[budgets.index(run["kept"]) % len(LINES)]
            style = {"color": look(run["policy"]).colour, "linestyle": line}
            label = f"{run['policy']}, {run['kept']}: {run['perplexity']:.1f}"
            above.plot(position, np.exp(points["nats"].mean()), label=label, **style)
            below.plot(position, points["process_bytes"].max() / 2**20, **style)
        above.set_title(f"{model}, {title}")
        above.set_ylabel(f"perplexity of {STRETCH:,} tokens")
        above.legend(title="policy, cache: perplexity of all that the run read")
        below.set_ylabel("process, MiB")
        below.set_ylim(bottom=0)
        below.set_xlabel("position, tokens")
        below.xaxis.set_major_formatter("{x:,.0f}")
    return figure


EXPERIMENT = Experiment(
    "fig5",
    __doc__,
    draw=draw,
    paper=("model=llama_7b", "data=hub", "task.title=null"),
    shows=("model", "task.title", "policy", "budget", "budget_tokens"),
    needs=("task.kind=perplexity", "task.mode=streaming"),
    scored=False,
)

if __name__ == "__main__":
    main(EXPERIMENT)
