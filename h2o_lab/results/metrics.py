"""What a metric's name says of it, and how sure its value is."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from h2o_lab.results.table import number

Z = 1.959963984540054
"""Quantile of the normal distribution for intervals of 95 %."""
ROUNDING = 1e-6
"""Of a variance, relative to it."""


class Interval(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


def smaller_is_better(metric: str) -> bool:
    """Perplexities, bits and nats are better when they are small."""
    return "perplexity" in metric or metric.startswith(("bits", "nats"))


def normal(value: float, error: float) -> Interval:
    """`value` ± 1.96 standard errors."""
    return Interval(value - Z * error, value + Z * error)


def wilson(share: float, count: int) -> Interval:
    """Wilson's score interval of a share of `count` questions (Wilson, 1927); it holds the share, within [0, 1]."""
    centre = share + Z**2 / (2 * count)
    half = Z * (share * (1 - share) / count + Z**2 / (4 * count**2)) ** 0.5
    whole = 1 + Z**2 / count
    low, high = (centre - half) / whole, (centre + half) / whole
    return Interval(min(max(0.0, low), share), max(min(1.0, high), share))  # rounding would put 0 of 20 below low


def is_share(value: float, error: float, count: int) -> bool:
    """Whether `value` is the mean of `count` numbers that are all 0 or 1, as their standard error tells.

    Numbers in [0, 1] have the variance value · (1 - value) if, and only if, none is in between.
    """
    expected = value * (1 - value)
    return count > 1 and 0 <= value <= 1 and abs(error**2 * (count - 1) - expected) <= ROUNDING


def interval(metric: str, metrics: Mapping[str, Any], count: int) -> Interval | None:
    """The 95 % interval of a metric.

    Of the bootstrap where the result has it, Wilson's for a share of questions, else ± 1.96 standard errors;
    None where nothing is said of its error, or samples that are all alike leave none.

    Args:
        metric: its name.
        metrics: those of a record.
        count: of its samples.
    """
    value, error = number(metrics.get(metric)), number(metrics.get(f"{metric}_stderr"))
    low, high = number(metrics.get(f"{metric}_low")), number(metrics.get(f"{metric}_high"))
    if value is None:
        return None
    if low is not None and high is not None:
        return Interval(low, high)
    if error is not None and metric.startswith("acc") and is_share(value, error, count):
        return wilson(value, count)
    return normal(value, error) if error else None
