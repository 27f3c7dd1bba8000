"""How figures look: colours, markers and matplotlib's settings."""

from typing import Any

# Okabe and Ito's colours, which the colour-blind can tell apart; markers tell them apart in print
LOOK = {
    "full": ("#000000", "o"),
    "h2o": ("#D55E00", "s"),
    "local": ("#0072B2", "^"),
    "streaming": ("#009E73", "D"),
    "h2o_streaming": ("#CC79A7", "v"),
    "random": ("#999999", "x"),
    "h2_only": ("#E69F00", "P"),
    "global_h2": ("#56B4E9", "*"),
}
"""Colour and marker of the policies that are drawn most."""
STYLE: dict[Any, Any] = {
    "figure.constrained_layout.use": True,
    "figure.dpi": 150,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
}
