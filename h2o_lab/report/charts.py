"""The main metric of one task against budget and against memory, as SVG for a page that is light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from h2o_lab.report.words import printable
from h2o_lab.results.look import LOOK, STYLE
from h2o_lab.results.metrics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

INK = "#010203"
"""Stands for the colour of the page's text."""
HOLLOW = ("o", "s", "^", "D", "v")
"""Markers of policies that have no look of their own."""
GLYPHS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "x": "✕", "P": "✚", "*": "★", ">": "▶", "X": "✖"}
GLYPHS |= {"h": "⬢", "d": "⬧"}
HOLLOW_GLYPHS = {"o": "○", "s": "□", "^": "△", "D": "◇", "v": "▽"}
DASHES = {"solid": "-", "dashed": "--", "dotted": ":", "dashdot": "-."}
"""Lines that tell apart what one policy did under different settings."""
SIZE = (4.7, 3.1)
"""Inches."""
LABEL = 40
"""Characters of the label of an axis."""
WIDE = 6.0
"""From this ratio of the largest to the smallest on, an axis is logarithmic."""
DODGE = 0.008
"""How far lines stand apart, so that their intervals can be told apart, in widths of the axis."""
DODGE_ALL = 0.06
"""How far the first and the last of them stand apart at most."""


@dataclass(frozen=True)
class Point:
    """One cell: budget, bytes of KV cache, main metric and its 95 % interval; None where unknown."""

    budget: float | None
    memory: float | None
    value: float
    interval: Interval | None


@dataclass(frozen=True)
class Series:
    """The cells of one policy under one setting.

    Attributes:
        label: as in the table.
        policy: its name.
        points: by budget; the full cache has one.
        colour, marker, hollow, dashes: how it is drawn; `dashes` is a key of `DASHES`.
    """

    label: str
    policy: str
    points: list[Point]
    colour: str = INK
    marker: str = "o"
    hollow: bool = False
    dashes: str = "solid"

    @property
    def glyph(self) -> str:
        """The marker as a letter."""
        return HOLLOW_GLYPHS[self.marker] if self.hollow else GLYPHS[self.marker]

    @property
    def ink(self) -> str:
        """The colour as CSS says it."""
        return "currentColor" if self.colour == INK else self.colour


def looks(found: list[tuple[str, str, list[Point]]]) -> list[Series]:
    """Give labels, policies and points their colours, markers and lines: those of `LOOK` where it has them."""
    colours = list(dict.fromkeys(each.colour for name, each in LOOK.items() if name != "full"))
    others = product(HOLLOW, colours)
    look: dict[str, tuple[str, str, bool]] = {}
    lines = list(DASHES)
    used: dict[str, int] = {}
    made = []
    for label, policy, points in found:
        if policy not in look:
            colour, marker, _ = LOOK.get(policy, ("", "", ""))
            look[policy] = (INK if policy == "full" else colour, marker, False)
            if policy not in LOOK:
                marker, colour = next(others, (HOLLOW[0], colours[0]))
                look[policy] = (colour, marker, True)
        first = list(DASHES.values()).index(LOOK[policy].line) if policy in LOOK else 0
        number = used[policy] = used.get(policy, first - 1) + 1
        made.append(Series(label, policy, points, *look[policy], lines[number % len(lines)]))
    return made


def budget_chart(series: list[Series], metric: str, axis: str) -> str:
    """The metric against the budget, the full cache as a line across; `axis` names what budgets are counted in."""
    with _axes(series, metric, axis) as ax:
        for full in series:
            if full.policy == "full":
                _across(ax, full)
        evicting = [each for each in series if each.policy != "full"]
        places, wide = _lines(ax, evicting, lambda point: point.budget)
        if places:
            shown = _apart(places, wide)
            ax.set_xticks(shown, [f"{x:g}" for x in shown])
            ax.set_xticks([], minor=True)
        return _inline(ax)


def memory_chart(series: list[Series], metric: str) -> str:
    """The metric against the mean resident KV cache."""
    unit, size = _unit([point.memory for each in series for point in each.points if point.memory])
    with _axes(series, metric, f"KV cache at the end of a sequence, {unit} (mean)") as ax:
        _, wide = _lines(ax, series, lambda point: None if point.memory is None else point.memory / size)
        if wide:
            _round_steps(ax.xaxis)
        return _inline(ax)


def _unit(sizes: list[float]) -> tuple[str, int]:
    largest = max(sizes, default=0)
    return next(
        ((unit, size) for unit, size in (("GiB", 2**30), ("MiB", 2**20)) if largest >= size), ("KiB", 2**10)
    )


@contextmanager
def _axes(series: list[Series], metric: str, axis: str) -> Iterator[Axes]:
    import matplotlib
    from matplotlib.figure import Figure

    style: dict[Any, Any] = STYLE | {"grid.alpha": 0.15, "grid.linewidth": 0.6}
    style |= dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), INK)
    style |= {"svg.hashsalt": ascii((metric, axis, [each.label for each in series]))}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=SIZE)
        ax = figure.subplots()
        figure.patch.set_visible(False)
        ax.patch.set_visible(False)
        ax.margins(y=0.08)
        values = [point.value for each in series for point in each.points]
        if min(values) > 0 and max(values) >= 2 * WIDE * min(values):
            ax.set_yscale("log")
            _round_steps(ax.yaxis)
        ax.set_xlabel(axis)
        ax.set_ylabel(printable(metric, LABEL), parse_math=False)
        yield ax


def _lines(ax: Axes, series: list[Series], place: Callable[[Point], float | None]) -> tuple[list[float], bool]:
    """Draw a line for each series; returns the places on the axis, and whether it is logarithmic."""
    placed = [[(x, point) for point in each.points if (x := place(point)) is not None] for each in series]
    places = sorted({x for points in placed for x, _ in points})
    wide = bool(places) and 0 < WIDE * places[0] <= places[-1]
    step = min(DODGE, DODGE_ALL / max(1, len(series)))
    span = places[-1] - places[0] if places else 0.0
    for number, (each, points) in enumerate(zip(series, placed, strict=True)):
        shift = step * (number - (len(series) - 1) / 2)
        _line(ax, each, [(x * (1 + shift) if wide else x + shift * span, point) for x, point in points])
    if wide:
        ax.set_xscale("log")
    return places, wide


def _across(ax: Axes, full: Series) -> None:
    for point in full.points:
        ax.axhline(point.value, color=full.colour, linestyle=DASHES[full.dashes], linewidth=1.2)
        if point.interval is not None:
            ax.axhspan(*point.interval, color=full.colour, alpha=0.08, linewidth=0)


def _line(ax: Axes, series: Series, points: list[tuple[float, Point]]) -> None:
    look: dict[str, Any] = {"color": series.colour, "marker": series.marker, "linestyle": DASHES[series.dashes]}
    look |= {"fillstyle": "none"} if series.hollow else {}
    points = sorted(points, key=lambda pair: pair[0])
    ax.plot([x for x, _ in points], [point.value for _, point in points], linewidth=1.4, markersize=5, **look)
    sure = [(x, *point.interval) for x, point in points if point.interval is not None]
    places, lows, highs = zip(*sure, strict=True) if sure else ((), (), ())
    ax.vlines(places, lows, highs, color=series.colour, linewidth=0.9, alpha=0.6)


def _apart(places: list[float], wide: bool) -> list[float]:
    """Of the places on an axis, those whose labels do not run into each other."""
    from math import log

    scale = log if wide else float
    if len(places) < 2:
        return places
    step = (scale(places[-1]) - scale(places[0])) / 10
    kept = [places[0]]
    kept += [x for x in places[1:-1] if scale(x) - scale(kept[-1]) >= step and scale(places[-1]) - scale(x) >= step]
    return [*kept, places[-1]]


def _round_steps(axis: Axis) -> None:
    """Label a logarithmic axis at 1, 2 and 5 times the powers of ten."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}")


def _inline(ax: Axes) -> str:
    """A figure as an SVG element: no prolog, no metadata, no names that another on the page may have."""
    file = io.StringIO()
    figure: Any = ax.figure
    figure.savefig(file, format="svg", metadata={"Date": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg)
    return svg.replace(INK, "currentColor")
