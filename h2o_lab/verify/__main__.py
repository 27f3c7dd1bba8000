"""Compute the first samples of a stored result again, and say whether they are still the same.

python -m h2o_lab.verify results/2026-01-31_12-00-00-000000
python -m h2o_lab.verify results/2026-01-31_12-00-00-000000/3 --samples 20

The folder is only read, and nothing is recorded. Exit code 0: the same samples; 1: different ones; 2: the result
cannot be verified. Other versions, another commit or other data are said and do not count by themselves.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from h2o_lab import log
from h2o_lab.errors import UserError

SAMPLES = 5
PIPE_WIDTH = 160
"""Columns where nobody watches."""
logger = logging.getLogger("h2o_lab.verify")


def main(argv: Sequence[str] | None = None) -> None:
    """Verify a result; the process ends with the code that says how it came out."""
    from h2o_lab.verify.compare import TOLERANCE

    asked = _parser(TOLERANCE).parse_args(argv)
    log.set_up()
    try:
        from h2o_lab.verify.report import show
        from h2o_lab.verify.verification import verify

        found = verify(asked.folder, asked.samples, asked.tolerance, asked.start, trust=asked.trust)
    except UserError as error:
        log.complain(str(error))
        sys.exit(2)
    except Exception:
        logger.exception("%s cannot be verified: its samples cannot be computed.", asked.folder)
        sys.exit(2)
    console = Console()
    show(found, console if console.is_terminal else Console(width=PIPE_WIDTH))
    sys.exit(0 if found.same else 1)


def _parser(tolerance: float) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m h2o_lab.verify", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of one result: result.json, samples.jsonl and config.yaml")
    parser.add_argument(
        "--samples", type=int, default=SAMPLES, help="how many, from the first (default: %(default)s)"
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=tolerance,
        help="how far numbers may be apart, relative to the larger (default: %(default)s)",
    )
    parser.add_argument(
        "--start",
        type=Path,
        help="the folder in which the run was started, from which relative paths of its configuration count",
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run code that the configuration names, of a policy or task of your own",
    )
    return parser


if __name__ == "__main__":
    main()
