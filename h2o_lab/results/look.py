"""How figures look: colours, markers and lines of policies, and matplotlib's settings."""

from __future__ import annotations

from typing import Any, NamedTuple


class Look(NamedTuple):
    """Of a policy's points and line."""

    colour: str
    marker: str
    line: str = "-"


# Okabe and Ito's colours, which the colour-blind can tell apart; markers and lines tell them apart in print
LOOK = {
    "full": Look("#000000", "o"),
    "h2o": Look("#D55E00", "s"),
    "local": Look("#0072B2", "^"),
    "streaming": Look("#009E73", "D"),
    "h2o_streaming": Look("#CC79A7", "v"),
    "random": Look("#999999", "x"),
    "h2_only": Look("#E69F00", "P"),
    "global_h2": Look("#56B4E9", "*"),
    "strided": Look("#56B4E9", "v", "--"),
    "strided_h2": Look("#56B4E9", "v"),
    "fixed": Look("#CC79A7", ">", "--"),
    "fixed_h2": Look("#CC79A7", ">"),
    "topk": Look("#E69F00", "X", ":"),
    "topk_h2": Look("#E69F00", "X"),
    "spatten": Look("#999999", "h", "-."),
    "drop_h2": Look("#882255", "d"),
}
"""Colour, marker and line of the policies that are drawn most, in the order of legends."""
OTHERS = (
    Look("#0072B2", "^"),
    Look("#D55E00", "s"),
    Look("#009E73", "D"),
    Look("#CC79A7", "v"),
    Look("#E69F00", "P"),
    Look("#56B4E9", "*"),
)
"""Of lines that are not policies."""
STYLE: dict[Any, Any] = {
    "figure.constrained_layout.use": True,
    "figure.dpi": 150,
    "savefig.dpi": 200,
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "errorbar.capsize": 2,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
}


def look(policy: str) -> Look:
    return LOOK.get(policy, Look("#555555", "."))


def rank(policy: str) -> tuple[int, str]:
    """Sorts policies as legends and tables have them."""
    names = list(LOOK)
    return (names.index(policy) if policy in names else len(names), policy)
