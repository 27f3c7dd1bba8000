"""Experiments that draw recorded attention: one panel or row of panels per run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.tables import model_name
from h2o_lab.stats import read

PAPER = ("model=opt_6_7b,opt_30b,llama_7b", "task=wikitext", "data=hub", "task.tokens=100000", "task.limit=1")
"""The paper's scale: WikiText-103, zero-shot (section 3.1)."""
NEEDS = ("stats.name=attention",)
WIDTH, HEIGHT = 3.4, 3.0
"""Of a panel, in inches."""


def panels(
    frame: pd.DataFrame, columns: int, draw: Callable[[dict[str, Any], list[Any]], None], width: float = WIDTH
) -> Figure:
    """A row of panels per run; in the first title its model, and its task, policy and budget where runs differ.

    Args:
        frame: rows of an experiment whose runs have recorded attention.
        columns: panels of a row.
        draw: given a run and its axes.
        width: of a panel, in inches.
    """
    told = [name for name in ("task", "policy", "budget", "budget_tokens") if frame[name].nunique(dropna=False) > 1]
    figure = Figure(figsize=(0.3 + width * columns, HEIGHT * len(frame)))
    axes = figure.subplots(len(frame), columns, squeeze=False)
    for run, row in zip(frame.to_dict("records"), axes, strict=True):
        draw({str(key): value for key, value in run.items()}, list(row))
        named = [model_name(run["model"]), *(str(run[name]) for name in told if not pd.isna(run[name]))]
        about = f"{', '.join(named)}, {run['stats.texts']:.0f} texts, {run['stats.tokens']:,.0f} tokens"
        title = row[0].get_title()
        row[0].set_title(f"{about}\n{title}" if title else about)
    return figure


def table(run: dict[str, Any], name: str) -> pd.DataFrame:
    """A table of a run's recorded attention; see `h2o_lab.stats.TABLES`."""
    return read(run["path"], name)
