"""A plan, for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from rich.table import Table
from rich.text import Text

from h2o_lab.plan.cells import FINISHED, TO_DO
from h2o_lab.plan.planner import Line

NOTHING = "–"


def plan_table(lines: Sequence[Line]) -> Table:
    """One row per cell, and what all that are to be done take together."""
    table = Table(caption=_caption(lines), caption_justify="left")
    for name, side in (
        ("", "right"),
        ("cell", "left"),
        ("", "left"),
        ("samples", "right"),
        ("tokens", "right"),
        ("k", "right"),
        ("KV of one", "right"),
        ("batch", "right"),
        ("KV of it", "right"),
        ("+ weights", "right"),
        ("fits", "left"),
        ("time", "right"),
    ):
        table.add_column(name, justify=side, overflow="fold", no_wrap=name not in ("cell", "fits"))  # type: ignore[arg-type]
    shared = _shared([line.cell.overrides for line in lines])
    for number, line in enumerate(lines, start=1):
        words = [word for word in line.cell.overrides if word not in shared]
        style = "" if line.cell.state == TO_DO else "dim"
        table.add_row(*_cells(number, " ".join(words or line.cell.overrides), line), style=style)
    to_do = [line for line in lines if line.cell.state == TO_DO]
    times = [line.seconds for line in to_do if line.seconds is not None]
    table.add_section()
    table.add_row(
        "",
        "to do",
        f"{len(to_do)} of {len(lines)}",
        count(sum(line.cost.samples for line in to_do)),
        count(sum(line.cost.tokens for line in to_do)),
        *[""] * 6,
        duration(sum(times)) if len(times) == len(to_do) and to_do else NOTHING,
        style="bold",
    )
    return table


def _cells(number: int, name: str, line: Line) -> list[Text | str]:
    cost, memory = line.cost, line.memory
    fit = Text(f"{memory.place}: {'yes' if line.fit else 'no'}", style="" if line.fit else "bold red")
    return [
        str(number),
        name or "the default",
        line.cell.state,
        count(cost.samples),
        ("" if cost.exact else "≈ ") + count(cost.tokens),
        f"{cost.k_mean:,.1f}".removesuffix(".0"),
        size(cost.kv_max),
        f"{cost.batch} of {count(line.fits)}",
        size(cost.kv_batch),
        size(line.weights),
        fit,
        duration(line.seconds) if line.seconds is not None else NOTHING,
    ]


def _caption(lines: Sequence[Line]) -> Text:
    """What the columns mean, and which memory is meant."""
    memories = {line.memory for line in lines}
    places = sorted(f"{one.place} ({size(one.free)} free of {size(one.total)})" for one in memories)
    said = [
        "k: mean entries of a head. KV of one: of the largest sequence, at its end. batch: sequences in memory at "
        "once, of those that would fit beside the weights. fits: whether weights and largest batch, without "
        f"activations, fit into {', '.join(places)}."
    ]
    if any(line.cost.steps for line in lines):
        said.append("Texts that are generated are counted at their longest.")
    if any(not line.cost.exact for line in lines):
        said.append("≈: scaled from the first samples.")
    if any(line.cell.state == FINISHED for line in lines):
        said.append("finished: below results_dir, taken over.")
    return Text(" ".join(said))


def _shared(overrides: Sequence[Sequence[str]]) -> set[str]:
    """What all cells have in common, where there are several."""
    return set.intersection(*map(set, overrides)) if len(overrides) > 1 else set()


def count(number: int) -> str:
    """With commas."""
    return f"{number:,}"


def size(number: float) -> str:
    """Bytes in the largest unit that leaves one or more: GiB (2^30 bytes), MiB or KiB."""
    for unit, one in (("GiB", 2**30), ("MiB", 2**20)):
        if number >= one:
            return f"{number / one:,.1f} {unit}"
    return f"{number / 1024:,.1f} KiB"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 1 else "1 s"
    whole = timedelta(seconds=round(seconds))
    return f"{whole} h" if seconds >= 3600 else f"{seconds // 60:.0f}:{seconds % 60:02.0f} min"
