"""The main metric of one task against budget and against memory, as SVG for a page that is light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from h2o_lab.results.look import LOOK, STYLE
from h2o_lab.results.metrics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

INK = "#010203"
"""Stands for the colour of the page's text."""
HOLLOW = ("o", "s", "^", "D", "v")
"""Markers of policies that have no look of their own."""
GLYPHS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "x": "✕", "P": "✚", "*": "★"}
HOLLOW_GLYPHS = {"o": "○", "s": "□", "^": "△", "D": "◇", "v": "▽"}
DASHES = {"solid": "-", "dashed": "--", "dotted": ":"}
"""Lines that tell apart what one policy did under different settings."""
SIZE = (4.7, 3.1)
"""Inches."""
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
    colours = [colour for name, (colour, _) in LOOK.items() if name != "full"]
    others = product(HOLLOW, colours)
    look: dict[str, tuple[str, str, bool]] = {}
    used: dict[str, int] = {}
    made = []
    for label, policy, points in found:
        if policy not in look:
            colour, marker = LOOK.get(policy, ("", ""))
            look[policy] = (INK if policy == "full" else colour, marker, False)
            if policy not in LOOK:
                marker, colour = next(others, (HOLLOW[0], colours[0]))
                look[policy] = (colour, marker, True)
        number = used[policy] = used.get(policy, -1) + 1
        made.append(Series(label, policy, points, *look[policy], list(DASHES)[number % len(DASHES)]))
    return made


def budget_chart(series: list[Series], metric: str, axis: str) -> str:
    """The metric against the budget, the full cache as a line across; `axis` names what budgets are counted in."""
    return _draw(series, metric, axis, lambda point: point.budget, lambda value: f"{value:g}", True)


def memory_chart(series: list[Series], metric: str) -> str:
    """The metric against the mean resident KV cache."""
    unit, size = _unit([point.memory for each in series for point in each.points if point.memory])
    return _draw(
        series,
        metric,
        f"KV cache at the end of a sequence, {unit} (mean)",
        lambda point: None if point.memory is None else point.memory / size,
        None,
        False,
    )


def _unit(sizes: list[float]) -> tuple[str, int]:
    largest = max(sizes, default=0)
    return next(
        ((unit, size) for unit, size in (("GiB", 2**30), ("MiB", 2**20)) if largest >= size), ("KiB", 2**10)
    )


def _draw(
    series: list[Series],
    metric: str,
    axis: str,
    place: Callable[[Point], float | None],
    tick: Callable[[float], str] | None,
    full_across: bool,
) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    grid: dict[Any, Any] = {"grid.alpha": 0.15, "grid.linewidth": 0.6}
    ink: dict[Any, Any] = dict.fromkeys(
        ("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), INK
    )
    salt: dict[Any, Any] = {"svg.hashsalt": f"{metric}{axis}{[each.label for each in series]}"}
    with matplotlib.rc_context({**STYLE, **ink, **grid, **salt}):
        figure = Figure(figsize=SIZE)
        figure.patch.set_visible(False)
        ax = figure.subplots()
        ax.patch.set_visible(False)
        places: set[float] = set()
        lines = [each for each in series if not (full_across and each.policy == "full")]
        for each in series:
            if each not in lines:
                _across(ax, each)
        known = [x for each in lines for point in each.points if (x := place(point)) is not None and x > 0]
        wide = bool(known) and max(known) >= WIDE * min(known)
        step = min(DODGE, DODGE_ALL / max(1, len(lines)))
        span = 1.0 if wide else (max(known) - min(known) if known else 1.0)
        for number, each in enumerate(lines):
            points = [(x, point) for point in each.points if (x := place(point)) is not None]
            places |= {x for x, _ in points}
            shift = step * (number - (len(lines) - 1) / 2) * span
            _line(ax, each, [(x * (1 + shift) if wide else x + shift, point) for x, point in points])
        if wide:
            ax.set_xscale("log")
        if tick is not None and places:
            ax.set_xticks(_apart(sorted(places), wide), minor=False)
            ax.set_xticklabels([tick(x) for x in ax.get_xticks()])
            ax.set_xticks([], minor=True)
        elif wide:
            _round_steps(ax.xaxis)
        _vertical(ax, series)
        ax.set_xlabel(axis)
        ax.set_ylabel(metric, parse_math=False)
        return _inline(figure)


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


def _vertical(ax: Axes, series: list[Series]) -> None:
    values = [point.value for each in series for point in each.points]
    if min(values) > 0 and max(values) >= 2 * WIDE * min(values):
        ax.set_yscale("log")
        _round_steps(ax.yaxis)
    ax.margins(y=0.08)


def _round_steps(axis: Axis) -> None:
    """Label a logarithmic axis at 1, 2 and 5 times the powers of ten."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}")


def _inline(figure: Any) -> str:
    """A figure as an SVG element: no prolog, no metadata, no names that another on the page may have."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg)
    return svg.replace(INK, "currentColor")
