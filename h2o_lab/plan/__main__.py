"""What a sweep will take, before it starts: nothing is written.

python -m h2o_lab.plan policy=full,h2o budget=0.1,0.2 task=piqa task.limit=1000
python -m h2o_lab.plan --no-calibrate +experiment=fig5

Give it the same words as `python -m h2o_lab.run -m`. Each cell is composed and checked as the run does it, its real
prompts are tokenised, and the model is run for a few seconds under each policy to tell its speed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hydra.errors import HydraException
from rich.console import Console
from rich.table import Table

from h2o_lab import log
from h2o_lab.errors import UserError

SAMPLES = 200
PIPE_WIDTH = 180
"""Columns where nobody watches."""


def main(argv: Sequence[str] | None = None) -> None:
    """Show what the cells will take; bad input ends the process with code 2."""
    asked = _parser().parse_intermixed_args(argv)
    log.set_up()
    try:
        table = _table(asked.overrides, asked.samples, not asked.no_calibrate)
    except (UserError, HydraException) as error:
        log.complain(" ".join(str(error).partition("Config search path")[0].split()))
        sys.exit(2)
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    console.print(table)


def _table(overrides: Sequence[str], samples: int, calibrate: bool) -> Table:
    if samples < 1:
        raise UserError(f"--samples={samples} is out of range: it must be 1 or more.")
    from h2o_lab.plan.planner import plan
    from h2o_lab.plan.table import plan_table

    return plan_table(plan(overrides, samples, calibrate=calibrate))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m h2o_lab.plan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", help="as for python -m h2o_lab.run -m")
    parser.add_argument("-m", "--multirun", action="store_true", help="allowed, so that a command can be copied")
    parser.add_argument(
        "--no-calibrate", action="store_true", help="load no model: no times, and the answer comes sooner"
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=SAMPLES,
        help="look at this many samples of each task, and scale what they need to the whole (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    main()
