"""A verification, for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from h2o_lab.verify.compare import Difference
from h2o_lab.verify.verification import Verification

ROWS = 30
"""Differences shown; the others are counted."""
WIDTH = 60
"""Characters of a value shown."""
AROUND = 12
"""Characters shown before the first one that differs."""


def show(found: Verification, console: Console) -> None:
    """One table of what differs, if anything does, and what was compared."""
    if found.samples or found.circumstances:
        console.print(difference_table(found))
    console.print(summary(found), markup=False, highlight=False, soft_wrap=True)


def summary(found: Verification) -> str:
    """What was compared and what came out, in two sentences at most."""
    names = found.compared
    which = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    differ = len({difference.where for difference in found.samples})
    outcome = "all the same" if found.same else f"{differ} of them different"
    said = (
        f"{len(names)} of {found.stored} samples were computed again ({which}), {outcome}: texts exactly, numbers "
        f"within {found.tolerance:g} of the larger."
    )
    if found.circumstances:
        fields = ", ".join(difference.field for difference in found.circumstances)
        said += f" The conditions differ: {fields}."
    return said


def difference_table(found: Verification) -> Table:
    """Conditions first, then samples."""
    table = Table()
    for name in ("sample", "field", "stored", "now"):
        table.add_column(name, overflow="fold")
    table.add_column("off by", justify="right", no_wrap=True)
    for difference in found.circumstances:
        table.add_row(*_cells(difference), style="dim")
    table.add_section()
    for difference in found.samples[:ROWS]:
        table.add_row(*_cells(difference))
    if len(found.samples) > ROWS:
        table.add_row("", f"and {len(found.samples) - ROWS} more", "", "", "")
    return table


def _cells(difference: Difference) -> list[Text]:
    stored, now = _pair(difference.stored, difference.now)
    off = "" if difference.off is None else f"{difference.off:.1e}"
    return [Text(cell) for cell in (difference.where, difference.field, stored, now, off)]


def _pair(stored: Any, now: Any) -> tuple[str, str]:
    """Two values, from shortly before the first character that differs where they are long."""
    one, other = str(stored), str(now)
    same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    start = max(0, same - AROUND) if max(len(one), len(other)) > WIDTH else 0
    return _part(one, start), _part(other, start)


def _part(text: str, start: int) -> str:
    end = start + WIDTH
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")
