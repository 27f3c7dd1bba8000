"""How good a cell is, how sure that is, and how far it is from the full cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from h2o_lab.report.cells import Cell
from h2o_lab.results.metrics import Interval, normal
from h2o_lab.results.metrics import interval as of_metrics
from h2o_lab.results.table import number

SAME = 1e-6
"""How far the mean over the samples may be from the metric that is said to be their mean."""


@dataclass(frozen=True)
class Difference:
    """Of a metric from that of the full cache.

    Attributes:
        value: the metric less that of the full cache.
        error: standard error of the mean over the samples' differences; None where samples have no such values.
        differing: samples whose value differs.
    """

    value: float
    error: float | None = None
    differing: int | None = None

    @property
    def interval(self) -> Interval | None:
        """± 1.96 standard errors; None where there is none, or no sample differs."""
        return normal(self.value, self.error) if self.error else None


def interval(cell: Cell) -> Interval | None:
    """The 95 % interval of a cell's main metric, as of `h2o_lab.results.metrics.interval`."""
    count = int(number(cell.record.get("samples")) or 0)
    return of_metrics(cell.metric, cell.section("metrics"), count) if cell.finished else None


def full_caches(cells: Iterable[Cell]) -> dict[str, Cell]:
    """By setting, the cell with the full cache; the newest, where there are several."""
    full = [cell for cell in cells if cell.value is not None and cell.text("policy") == "full"]
    return {cell.setting: cell for cell in sorted(full, key=lambda cell: cell.text("finished"))}


def difference(cell: Cell, full: Cell) -> Difference | None:
    """How far a cell is from the full cache, sample by sample where both hold the same samples."""
    value, other = cell.value, full.value
    if value is None or other is None:
        return None
    mine, theirs = _values(cell, value), _values(full, other)
    if mine is None or theirs is None or cell.samples.names != full.samples.names:
        return Difference(value - other)
    apart = [one - two for one, two in zip(mine, theirs, strict=True)]
    count = len(apart)
    if count < 2:
        return Difference(value - other)
    mean = sum(apart) / count
    variance = sum((each - mean) ** 2 for each in apart) / (count - 1)
    return Difference(value - other, (variance / count) ** 0.5, sum(each != 0 for each in apart))


def _values(cell: Cell, mean: float) -> list[float] | None:
    """Of every sample, its part of the metric; None unless the metric is their mean."""
    found = [value for value in cell.samples.values if value is not None]
    if not found or len(found) < len(cell.samples.values) or cell.samples.damaged:
        return None
    return found if abs(sum(found) / len(found) - mean) <= SAME * max(1.0, abs(mean)) else None
