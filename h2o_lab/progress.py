"""One progress bar with rate and time left, silent where nobody watches."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

console = Console(file=sys.stderr, width=None if sys.stderr.isatty() else 160)
"""Standard error, whatever it is redirected to later."""


class RateColumn(ProgressColumn):
    """Units done per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:.1f}/s" if speed else "–/s")


@contextmanager
def progress(label: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Show a bar while the context lasts; call what it yields with the number of units just done."""
    bar = Progress(
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        RateColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal or not logging.getLogger("h2o_lab").isEnabledFor(logging.INFO),
        transient=True,
    )
    with bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.advance(task, done)
