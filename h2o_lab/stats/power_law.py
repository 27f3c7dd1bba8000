"""Is it a power law? Fitted and tested, not assumed (paper, section 3.2)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIGNIFICANT = 0.1
"""p-value below which a likelihood ratio decides (Clauset, Shalizi and Newman 2009)."""
RIVALS = ("lognormal", "exponential")
LEAST = 50
"""Different values below which nothing is fitted."""


def fit(values: NDArray[np.floating[Any]]) -> dict[str, Any]:
    """Fit the tail of positive values and compare it with other distributions.

    The exponent is the density's, p(x) ~ x^-alpha for x >= xmin, by maximum likelihood; xmin is where the
    Kolmogorov-Smirnov distance is least. A likelihood ratio above 0 is for the power law, below 0 for the rival.

    Args:
        values: one per token; zeros are left out.

    Returns:
        `alpha`, `alpha_stderr`, `xmin`, `ks` (the distance), `values`, `tail` (values from xmin on), for each rival
        `ratio_<rival>` (normalised log-likelihood ratio) and `p_<rival>`, and `verdict`: the name of the rival that
        is better; `power law` where none is, one at least is worse and most of the values are in the tail;
        `power-law tail` where fewer are (as in many a log-normal sample); else `undecided`. With fewer than `LEAST`
        different values `values` and the verdict `too few`.
    """
    import powerlaw

    values = np.asarray(values, dtype=np.float64)
    values = values[values > 0]
    if len(np.unique(values)) < LEAST:
        return {"values": len(values), "verdict": "too few"}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # a rival that fits nowhere is told by its ratio
        # without ranges of its own the library stops at 3
        found = powerlaw.Fit(values, parameter_ranges={"alpha": [1, None]}, verbose=False)
        tests = {name: found.distribution_compare("power_law", name, normalized_ratio=True) for name in RIVALS}
    law = found.power_law
    told: dict[str, Any] = {
        "alpha": float(law.alpha),
        "alpha_stderr": float(law.sigma),
        "xmin": float(law.xmin),
        "ks": float(law.D),
        "values": len(values),
        "tail": int((values >= law.xmin).sum()),
    }
    for name, (ratio, p) in tests.items():
        told |= {f"ratio_{name}": float(ratio), f"p_{name}": float(p)}
    return told | {"verdict": _verdict(told)}


def _verdict(told: dict[str, Any]) -> str:
    decided = {name: told[f"ratio_{name}"] for name in RIVALS if told[f"p_{name}"] < SIGNIFICANT}
    better = {name: ratio for name, ratio in decided.items() if ratio < 0}
    if better:
        return min(better, key=better.__getitem__)
    if not decided:
        return "undecided"
    return "power law" if 2 * told["tail"] >= told["values"] else "power-law tail"
