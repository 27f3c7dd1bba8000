"""Write one page about a sweep, or about several: tables, charts, failures and samples in a single HTML file.

python -m h2o_lab.report results/2026-01-31_12-00-00-000000
python -m h2o_lab.report results --out report.html --title 'H2O on six tasks'

The page needs no network and can be sent as it is. Results are only read. Exit code 2: nothing could be written.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from h2o_lab import log
from h2o_lab.errors import UserError

NAME = "report.html"
logger = logging.getLogger("h2o_lab.report")


def main(argv: Sequence[str] | None = None) -> None:
    """Write the page; bad input ends the process with code 2."""
    asked = _parser().parse_args(argv)
    log.set_up()
    try:
        from h2o_lab.report.page import page
        from h2o_lab.results.store import write_atomic

        out = destination(asked.out, asked.results)
        html = page(asked.results, out, asked.title)
        write_atomic(out, html)
    except UserError as error:
        log.complain(str(error))
        sys.exit(2)
    logger.info("%s (%.1f MB)", out, out.stat().st_size / 1e6)


def destination(out: Path | None, results: Sequence[Path]) -> Path:
    """Where the page goes: `out`, or `report.html` in the first folder of results.

    Raises:
        UserError: something else is there already, or its folder cannot be made.
    """
    from h2o_lab.report.page import GENERATOR

    if out is None:
        out = (results[0] if results[0].is_dir() else results[0].parent) / NAME
        if not out.parent.is_dir():
            raise UserError(f"There is no file or folder {results[0]} to read results from.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.exists() and GENERATOR.encode() not in (b"" if out.is_dir() else out.read_bytes()[:2000]):
            raise UserError(f"{out} is there already and no report, so it is kept: choose another file with --out.")
    except OSError as error:
        raise UserError(f"Cannot write {out}: {error.strerror}; choose another file with --out.") from error
    return out


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m h2o_lab.report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", nargs="+", type=Path, help="folders that runs or sweeps wrote")
    parser.add_argument(
        "--out", type=Path, help=f"the page (default: {NAME} in the first folder); an older report is replaced"
    )
    parser.add_argument("--title", help="of the page (default: the names of the folders)")
    return parser


if __name__ == "__main__":
    main()
