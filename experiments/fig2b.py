"""How attention is shared out: sorted, its tail with fitted power laws, and by word (paper, Figure 2b).

python -m experiments.fig2b --run
python -m experiments.fig2b --scale paper model=opt_6_7b
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from experiments.driver import Experiment, main
from experiments.recorded import NEEDS, PAPER, panels, table
from h2o_lab.stats import charts

LEAST = 5
"""Occurrences of a token that is drawn."""
NAMED = 5
"""Tokens with the most attention, whose text is drawn."""


def draw(frame: pd.DataFrame) -> Figure:
    return panels(frame, 4, _row)


def _row(run: dict[str, Any], axes: list[Any]) -> None:
    charts.sorted_attention(axes[0], table(run, "curves"))
    charts.tail(axes[1], table(run, "values"), table(run, "layers"))
    tokens = table(run, "tokens")
    tokens = tokens[tokens["count"] >= LEAST]
    _words(axes[2], tokens, tokens["attention"] * tokens["count"], "attention of all occurrences", charts.ORANGE)
    _words(axes[3], tokens, tokens["per_query"], "attention by a query that sees it", charts.BLUE)


def partial(x: pd.Series, y: pd.Series, given: pd.Series) -> float:
    """Spearman's partial correlation of x and y [n]: of their ranks, less what is linear in the ranks of `given`.

    What is missing in one of them is left out.
    """
    ranks = pd.DataFrame({"x": x, "y": y, "given": given}).dropna().rank()
    (_, xy, xg), (_, _, yg), _ = ranks.corr().to_numpy()
    return float((xy - xg * yg) / ((1 - xg**2) * (1 - yg**2)) ** 0.5)


def _words(ax: Axes, tokens: pd.DataFrame, attention: pd.Series, label: str, colour: str) -> None:
    """Attention of tokens over their co-occurrence with others, in the recorded texts.

    Both are sums over occurrences or grow with them, so that the title has the correlation at equal count too.
    """
    found = spearmanr(tokens["neighbours"], attention, nan_policy="omit")
    given = partial(tokens["neighbours"], attention, tokens["count"])
    ax.scatter(tokens["neighbours"], attention, s=8, color=colour, alpha=0.5, linewidths=0)
    ax.set(xscale="log", yscale="log", xlabel="co-occurrence: neighbours within 5 tokens", ylabel=label)
    ax.set_title(f"{len(tokens)} tokens, Spearman's ρ = {found.statistic:.2f}\nat equal count {given:.2f}")
    for token in attention.nlargest(NAMED).index:
        text = repr(tokens.loc[token, "text"])[1:-1].strip() or "space"
        where = (tokens.loc[token, "neighbours"], attention[token])
        ax.annotate(text, where, xytext=(3, 0), textcoords="offset points", va="center", fontsize=7)


EXPERIMENT = Experiment("fig2b", __doc__, draw=draw, paper=PAPER, needs=NEEDS, scored=False)

if __name__ == "__main__":
    main(EXPERIMENT)
