"""A whole book as one stream: perplexity and memory along it (paper, Figure 5).

python -m experiments.fig5
python -m experiments.fig5 --run
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.driver import Experiment, main
from h2o_lab.results import load_samples
from h2o_lab.results.look import look

LINES = ("-", "--", ":", "-.")
STRETCH = 5000
"""Tokens that one point of a curve stands for."""


def draw(frame: pd.DataFrame) -> Figure:
    """Curves of perplexity (above) and of the memory of the process (below) over the position in the book."""
    runs = frame.sort_values(["budget_tokens", "policy"])
    budgets = list(dict.fromkeys(runs["budget_tokens"]))
    figure = Figure(figsize=(6.5, 5))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for _, run in runs.iterrows():
        samples = load_samples(run["path"])
        points = samples.assign(nats=np.log(samples["perplexity"])).groupby((samples["tokens"] - 1) // STRETCH)
        position = points["tokens"].max()
        style = {
            "color": look(run["policy"]).colour,
            "linestyle": LINES[budgets.index(run["budget_tokens"]) % len(LINES)],
        }
        label = f"{run['policy']}, k = {run['budget_tokens']:.0f}: {run['perplexity']:.1f}"
        above.plot(position, np.exp(points["nats"].mean()), label=label, **style)
        below.plot(position, points["process_bytes"].max() / 2**20, **style)
    above.set_ylabel(f"perplexity of {STRETCH:,} tokens")
    above.legend(title="policy, cache: perplexity of the whole book")
    below.set_ylabel("process, MiB")
    below.set_ylim(bottom=0)
    below.set_xlabel("position, tokens")
    below.xaxis.set_major_formatter("{x:,.0f}")
    return figure


EXPERIMENT = Experiment("fig5", __doc__, draw=draw, paper=("model=llama_7b", "data=hub", "task.title=null"))

if __name__ == "__main__":
    main(EXPERIMENT)
