"""The number that stands for a cell in figures and tables, with its 95 % interval."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from h2o_lab.errors import UserError

Z = 1.959964
"""Of a 95 % interval of the normal distribution."""
PREFERRED = "acc_norm"
"""Taken where a task has it: choices of different length, scored per byte."""
SHARES = ("acc", "accuracy", "exact_match")
"""Metrics that are a share of the questions begin so; they are shown in percent."""
CHANCE = {"copa": 50, "mathqa": 20, "openbookqa": 25, "piqa": 50, "rte": 50, "winogrande": 50}
"""Accuracy of a guess, in percent."""


TASKS = {
    "cnn_dm": "CNN/DailyMail",
    "copa": "COPA",
    "mathqa": "MathQA",
    "multi_doc_qa": "several documents",
    "openbookqa": "OpenBookQA",
    "piqa": "PIQA",
    "rte": "RTE",
    "winogrande": "Winogrande",
    "xsum": "XSum",
}
METRICS = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "self_bleu": "Self-BLEU"}
"""Tasks and metrics as people write them; others stand as they are."""


def scored(frame: pd.DataFrame, metric: str | None = None) -> pd.DataFrame:
    """With the columns `metric`, `score`, `low` and `high`; shares are in percent.

    Args:
        frame: rows of `h2o_lab.results.load`.
        metric: which one, never below 0; by default `acc_norm` where the task has it, else the main one.

    Raises:
        UserError: a cell has no such metric.
    """
    return frame.assign(**pd.DataFrame([_score(row, metric) for row in frame.to_dict("records")], frame.index))


def _score(row: dict[Any, Any], metric: str | None) -> dict[str, Any]:
    name = metric or (PREFERRED if _value(row, PREFERRED) is not None else row["main_metric"])
    value, error = _value(row, name), _value(row, f"{name}_stderr")
    if value is None:
        raise UserError(f"--metric={name} is not in {row['path']}: its main metric is {row['main_metric']}.")
    if is_share(name):
        low, high = wilson(value, int(row["samples"]))
        return {"metric": name, "score": 100 * value, "low": 100 * low, "high": 100 * high}
    margin = math.nan if error is None else Z * error
    return {"metric": name, "score": value, "low": value - min(margin, value), "high": value + margin}


def _value(row: dict[Any, Any], name: str) -> float | None:
    """A metric, by its short name or, where a section of the record has that too, its long one."""
    found = [row.get(key) for key in (name, f"metrics.{name}")]
    return next((float(value) for value in found if isinstance(value, int | float) and math.isfinite(value)), None)


def is_share(metric: str) -> bool:
    return metric.partition("_")[0] in SHARES


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share of n questions (Wilson 1927), within [0, 1]."""
    centre = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    margin = Z / (1 + Z**2 / n) * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    return max(0.0, centre - margin), min(1.0, centre + margin)
