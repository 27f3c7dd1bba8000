"""The table of `experiments.theory`, from the metrics of its result alone."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from h2o_lab.theory.summary import QUANTILES

if TYPE_CHECKING:
    from rich.table import Table

STATISTICS = (*QUANTILES, "mean", "below_guarantee", "optimal")
HEADS = {"below_guarantee": "<1-1/e", "optimal": "=1"}


def theory_table(metrics: Mapping[str, Any]) -> "Table":
    """One row per measured quantity and k: its distribution over windows, layers and heads.

    Under an objective: shares of its optimum. Under `accumulated` and `latest`: `dynamics.StepChanges`, under
    `h2o` (k/2 recents) and `h2_only` (one): `process.ProcessValue`, all of them over steps too.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(caption=_violations(metrics["violations"]))
    table.add_column("quantity", no_wrap=True)
    table.add_column("k", justify="right")
    for name in STATISTICS:
        table.add_column(HEADS.get(name, name), justify="right", no_wrap=True)
    for name, sizes in _sections(metrics):
        table.add_section()
        table.add_row(Text(name, style="bold"))
        for size, quantities in sizes.items():
            for quantity, found in quantities.items():
                cells = [f"{found[s]:.3f}" if s in found else "" for s in STATISTICS]
                table.add_row(f"  {quantity}", size.removeprefix("k"), *cells)
    return table


def _sections(metrics: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from metrics["ratio"].items()
    for of, sizes in metrics["steps"].items():
        yield of, {size: {name: found["all"] for name, found in kinds.items()} for size, kinds in sizes.items()}


def _violations(found: Mapping[str, Any]) -> str:
    counts = (
        f"{name}: {of['monotone']} monotonicity, {of['submodular']} submodularity" for name, of in found.items()
    )
    checked = sum(of["checked"] for of in found.values())
    return f"violations in {checked} random triples: " + "; ".join(counts)
