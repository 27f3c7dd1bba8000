"""The number that stands for a cell in figures and tables, with its 95 % interval."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd

from h2o_lab.errors import UserError
from h2o_lab.results.metrics import interval
from h2o_lab.results.store import RESULT
from h2o_lab.results.table import number

PREFERRED = "acc_norm"
"""Taken where a task has it: choices of different length, scored per byte."""
PERCENT = ("acc", "accuracy", "exact_match")
"""Metrics that begin so are shown in percent."""
BESIDE = ("_stderr", "_low", "_high")
"""Names of what stands beside a metric end so."""
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
    """With the columns `metric`, `score`, `low` and `high`; those of accuracy are in percent.

    Args:
        frame: rows of `h2o_lab.results.load`.
        metric: which one; by default `acc_norm` where the task has it, else the main one.

    Raises:
        UserError: a cell has no such metric.
    """
    return frame.assign(**pd.DataFrame([_score(row, metric) for row in frame.to_dict("records")], frame.index))


def _score(row: dict[Any, Any], metric: str | None) -> dict[str, Any]:
    record = json.loads((Path(row["path"]) / RESULT).read_text(encoding="utf-8"))
    metrics = record["metrics"]
    names = [name for name in metrics if not name.endswith(BESIDE) and number(metrics[name]) is not None]
    name = metric or (PREFERRED if PREFERRED in names else record["main_metric"])
    if name not in names:
        raise UserError(f"--metric={name} is not in {row['path']}: it has {', '.join(names) or 'none'}.")
    low, high = interval(name, metrics, record["samples"]) or (math.nan, math.nan)
    factor = 100 if in_percent(name) else 1
    return {"metric": name, "score": factor * metrics[name], "low": factor * low, "high": factor * high}


def in_percent(metric: str) -> bool:
    return metric.partition("_")[0] in PERCENT
