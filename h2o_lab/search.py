"""What a search of the smallest budget compares with, and minimises."""

from __future__ import annotations

import copy
from typing import Any

from h2o_lab.config import Config
from h2o_lab.results.metrics import smaller_is_better

ROUNDING = 1e-9
"""Of a difference of two metrics."""


def full_cache(cfg: Config) -> Config:
    """The same cell without eviction; a search computes it once, whatever `resume` says."""
    full = copy.deepcopy(cfg)
    full.policy = {"_target_": "h2o_lab.policies.Full"}
    full.resume = True
    return full


def shortfall(record: dict[str, Any], full: dict[str, Any], within: float) -> float:
    """What a search of the smallest budget minimises.

    Returns:
        The share of the full cache's entries that are kept, at most 1, where the main metric is at most `within`
        worse; else 1 and what is missing. Perplexities and bits are better when they are small.
    """
    metric = record["main_metric"]
    worse = full["metrics"][metric] - record["metrics"][metric]
    if smaller_is_better(metric):
        worse = -worse
    kept = record["k"]["mean"] / full["k"]["mean"]
    return min(1.0, kept) if worse <= within + ROUNDING else 1 + worse - within
