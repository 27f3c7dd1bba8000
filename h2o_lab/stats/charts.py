"""Pictures of recorded attention: each function draws one table into one pair of axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

LAYERS = "viridis"
"""Colours of layers, from the first to the last."""
BLACK, ORANGE, BLUE, GREEN = "#000000", "#D55E00", "#0072B2", "#009E73"


def overview(tables: Mapping[str, DataFrame]) -> Figure:
    """Sparsity, sorted attention, overlap over time and the tail, for a tracker."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.5), layout="constrained")
    axes = figure.subplots(2, 2)
    sparsity(axes[0, 0], tables["heads"])
    sorted_attention(axes[0, 1], tables["curves"])
    over_time(axes[1, 0], tables["times"], "overlap_with_final")
    tail(axes[1, 1], tables["values"], tables["layers"])
    return figure


def sparsity(ax: Axes, heads: DataFrame) -> None:
    """Sparsity by layer: mean over heads, the range of heads as a band (paper, Figure 2a)."""
    for name, colour, label in (
        ("sparsity", ORANGE, "of the entries that queries see"),
        ("sparsity_of_square", BLUE, "of the T × T square"),
    ):
        layers = heads.groupby("layer")[name]
        ax.plot(layers.mean(), color=colour, marker="o", markersize=3, label=label)
        ax.fill_between(layers.min().index, layers.min(), layers.max(), color=colour, alpha=0.2, linewidth=0)
    ax.axhline(0.95, color=BLACK, linestyle=":", linewidth=1, label="0.95")
    ax.set(xlabel="layer", ylabel="sparsity", ylim=(0, 1.02))
    ax.legend(loc="lower right")


def sorted_attention(ax: Axes, curves: DataFrame) -> None:
    """The share of all attention that the most attended tokens have, one line a layer (paper, Figure 2b)."""
    layers = curves.groupby(["layer", "share"])["mass"].mean().unstack("layer")
    _each_layer(ax, layers)
    ax.plot(layers.mean(axis=1), color=BLACK, linewidth=2, label="mean of layers")
    ax.plot([0, 1], [0, 1], color=BLACK, linestyle=":", linewidth=1, label="all the same")
    ax.set(xlabel="share of the tokens, the most attended first", ylabel="share of all attention", ylim=(0, 1.02))
    ax.legend(loc="lower right")


def over_time(ax: Axes, times: DataFrame, name: str, label: str | None = None) -> None:
    """A column of `times` over the text, one line a layer."""
    layers = times.groupby(["layer", "at"])[name].mean().unstack("layer")
    _each_layer(ax, layers)
    ax.plot(layers.mean(axis=1), color=BLACK, linewidth=2, marker="o", markersize=3, label="mean of layers")
    ax.set(xlabel="share of the text read", ylabel=label or name.replace("_", " "))
    ax.set_ylim(bottom=0)
    ax.legend(loc="lower right")


def tail(ax: Axes, values: DataFrame, layers: DataFrame, shown: int = 4) -> None:
    """Share of tokens that get more than x, for some layers, with the fitted power laws (paper, section 3.2)."""
    fitted = layers.set_index("layer")
    chosen = np.unique(np.linspace(0, len(fitted) - 1, shown).round().astype(int))
    for place, layer in enumerate(chosen):
        colour = colour_of(place, len(chosen))
        found = np.sort(values.loc[values["layer"] == layer, "value"].to_numpy())
        found = found[found > 0]
        above = 1 - np.arange(len(found)) / len(found)
        law = fitted.loc[layer]
        ax.plot(found, above, ".", markersize=2, color=colour)
        label = f"layer {layer}: {law['verdict']}"
        if "alpha" in law and np.isfinite(law["alpha"]):
            label += f", α = {law['alpha']:.2f}"
            x = np.geomspace(law["xmin"], found[-1], 50)
            ax.plot(x, law["tail"] / law["values"] * (x / law["xmin"]) ** (1 - law["alpha"]), color=colour)
        ax.plot([], [], color=colour, label=label)
    ax.set(xscale="log", yscale="log", xlabel="accumulated attention (mean 1)", ylabel="share of tokens above")
    ax.set_ylim(0.5 / max(1, len(values) / len(fitted)), 100)  # room for the legend
    ax.legend(loc="upper right")


def _each_layer(ax: Axes, layers: DataFrame) -> None:
    for place, layer in enumerate(layers):
        ends = layer in (layers.columns[0], layers.columns[-1])
        label = f"layer {layer}" if ends else None
        ax.plot(layers[layer], color=colour_of(place, layers.shape[1]), linewidth=0.8, alpha=0.7, label=label)


def colour_of(place: int, count: int) -> tuple[float, ...]:
    """Of the line with this place among so many."""
    import matplotlib

    return matplotlib.colormaps[LAYERS](0.9 * place / max(1, count - 1))
