"""The chart of `peers.py`: a row of panels for each context, a bar for each contender."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from h2o_lab.results.look import STYLE

MIB = 2**20
PANELS = (
    ("prefill_seconds", "prefill, s", 1),
    ("decode_tokens_per_second", "decode, tokens/s", 1),
    ("kv_bytes_end", "KV at the end, MiB", MIB),
    ("peak_bytes_beyond_model", "peak beyond the model, MiB", MIB),
    ("perplexity", "perplexity of the continuation", 1),
)
"""Key of a row, title, and what the number is divided by."""
COLOURS = {"full": "#000000", "kvpress": "#0072B2", "h2o": "#D55E00"}
"""Of the first word of a contender; Okabe and Ito's."""


def draw(rows: list[dict[str, Any]]) -> Figure:
    """Bars with their numbers, one panel for each quantity and context."""
    contexts = list(dict.fromkeys(row["context"] for row in rows))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(13, 0.4 + 2.3 * len(contexts)))
        axes = figure.subplots(len(contexts), len(PANELS), sharey="row", squeeze=False)
        for context, line in zip(contexts, axes, strict=True):
            shown = [row for row in rows if row["context"] == context]
            colours = [COLOURS[row["contender"].split(",")[0]] for row in shown]
            names = [row["contender"] for row in shown]
            for (key, title, unit), ax in zip(PANELS, line, strict=True):
                numbers = [row[key] / unit for row in shown]
                bars = ax.barh(names, numbers, color=colours, height=0.7)
                labels = [f"{number:,.0f}" if number >= 100 else f"{number:.3g}" for number in numbers]
                ax.bar_label(bars, labels, padding=2, fontsize=7)
                ax.margins(x=0.18)
                ax.grid(visible=False, axis="y")
                ax.set_title(title)
            line[0].invert_yaxis()
            line[0].set_ylabel(f"{context} tokens, k = {shown[0]['k']}")
    return figure
