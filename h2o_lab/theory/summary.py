"""Distributions of what was measured, as plain numbers for a result."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from h2o_lab.theory.checks import Violations
from h2o_lab.theory.measure import Step
from h2o_lab.theory.objectives import Floats

GUARANTEE = 1 - 1 / math.e
"""1 - 1/e, the share of the optimum that greedy is sure of (Theorem 4.4 without its alpha and beta)."""
QUANTILES = {"min": 0.0, "p1": 0.01, "p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95, "max": 1.0}
WAYS = ("greedy", "one_out_one_in", "heaviest", "average_set")
"""Sets whose share of the optimum is shown."""
ROUNDING = 1e-9
"""Ratios this close to a bound count as equal to it."""


def distribution(values: Floats) -> dict[str, float]:
    """`QUANTILES` and the mean of all `values`, at least one."""
    found = np.quantile(values, list(QUANTILES.values()))
    return dict(zip(QUANTILES, map(float, found), strict=True)) | {"mean": float(np.mean(values))}


def ratio_distribution(ratios: Floats) -> dict[str, float]:
    """As `distribution`, with the shares of ratios below 1 - 1/e and of ratios that are 1."""
    below, equal = ratios < GUARANTEE - ROUNDING, ratios >= 1 - ROUNDING
    return distribution(ratios) | {"below_guarantee": float(below.mean()), "optimal": float(equal.mean())}


def per_layer(values: Floats) -> dict[str, list[float]]:
    """Distribution of `values`, [layers, ...], in each layer: one list over the layers per statistic."""
    layers = [distribution(layer) for layer in values]
    return {name: [layer[name] for layer in layers] for name in ("p50", "p95", "max", "mean")}


def per_doubling(values: Floats, first: int) -> list[dict[str, Any]]:
    """Distribution of `values`, [..., steps], over steps first..2 first - 1, 2 first..4 first - 1 and so on.

    Args:
        values: the last axis are consecutive steps.
        first: index of the first of them, 1 or more.
    """
    last = first + values.shape[-1]
    edges = [first]
    while edges[-1] < last:
        edges.append(min(2 * edges[-1], last))
    return [
        {"from": start, "to": end - 1} | distribution(values[..., start - first : end - first])
        for start, end in pairwise(edges)
    ]


def metrics(
    samples: Sequence[Mapping[str, Any]], found: Mapping[str, Violations], steps: Mapping[Step, Floats]
) -> dict[str, Any]:
    """All distributions of one run, as nested dicts of numbers.

    Args:
        samples: of `measure_choices`, from all heads, layers and windows; at least one.
        found: violations by objective, summed over the same.
        steps: of `measure_steps`, each float64 [layers, ..., steps].
    """
    shares: dict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)
    for sample in samples:
        shares[sample["objective"], sample["k"]].append(sample)
    ratio: dict[str, Any] = defaultdict(dict)
    for (objective, k), group in shares.items():
        ratio[objective][f"k{k}"] = {
            way: ratio_distribution(np.array([sample[way] for sample in group])) for way in WAYS
        }
    by_step: dict[str, Any] = defaultdict(lambda: defaultdict(dict))
    for (of, k, quantity), values in steps.items():
        whole = ratio_distribution if quantity == "ratio" else distribution
        by_step[of][f"k{k}"][quantity] = {
            "all": whole(values),
            "per_layer": per_layer(values),
            "per_doubling": per_doubling(values, k),
        }
    return {
        "least_greedy_ratio": min(sample["greedy"] for sample in samples),
        "ratio": ratio,
        "violations": {name: counts._asdict() for name, counts in found.items()},
        "steps": by_step,
    }
