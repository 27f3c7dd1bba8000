"""What a cache holds under each policy, and the signs of one in trouble.

python -m experiments.occupancy --run
python -m experiments.occupancy --scale paper model=opt_6_7b
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from experiments.driver import Experiment, main
from experiments.recorded import HEIGHT, NEEDS, PAPER, WIDTH, table
from experiments.tables import model_name
from h2o_lab.results.look import look, rank

SIGNS = {
    "retained": "share of full attention on what is held",
    "age": "mean age of what is held, tokens",
    "entropy": "entropy of attention, nats",
    "oldest": "attention on the oldest entry",
}
"""Columns of the table `times`, and what they are."""


def draw(frame: pd.DataFrame) -> Figure:
    """A row of panels per model, a line per policy: means over layers and heads."""
    models = list(dict.fromkeys(frame["model"]))
    figure = Figure(figsize=(0.3 + WIDTH * len(SIGNS), 0.4 + HEIGHT * len(models)))
    axes = figure.subplots(len(models), len(SIGNS), squeeze=False)
    for model, row in zip(models, axes, strict=True):
        runs = sorted(frame[frame["model"] == model].to_dict("records"), key=lambda run: rank(run["policy"]))
        for run in runs:
            means = table(run, "times").groupby("at").mean(numeric_only=True)
            style = look(run["policy"])
            label = run["policy"] + (f": {run['metric']} {run['score']:.1f}" if len(models) == 1 else "")
            for name, ax in zip(SIGNS, row, strict=True):
                ax.plot(means[name], color=style.colour, marker=style.marker, linestyle=style.line, label=label)
        for (name, says), ax in zip(SIGNS.items(), row, strict=True):
            ax.set(xlabel="share of the window read", ylabel=says)
            if name == "age":
                ax.set_yscale("log", base=2)
                ax.yaxis.set_major_formatter("{x:.0f}")
        row[0].set_title(model_name(model))
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=6)
    return figure


EXPERIMENT = Experiment(
    "occupancy", __doc__, draw=draw, paper=PAPER, shows=("model", "policy"), needs=NEEDS, scored=False
)

if __name__ == "__main__":
    main(EXPERIMENT)
