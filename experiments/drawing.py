"""How figures look, and what their files say about where they come from."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

import h2o_lab
from h2o_lab import log
from h2o_lab.errors import UserError
from h2o_lab.results import load
from h2o_lab.results.environment import own_git_state
from h2o_lab.results.look import STYLE

logger = logging.getLogger("h2o_lab.experiments")


def draw_command(name: str, description: str | None, draw: Callable[[pd.DataFrame], Figure]) -> None:
    """The command line of a figure: reads results, draws, and writes `<name>.pdf` and `<name>.png`.

    A missing folder or missing runs end the program with code 2 and one sentence.
    """
    made = argparse.ArgumentParser(prog=f"python -m experiments.{name}", description=description)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("results", nargs="*", default=["results"], help="folders of results (default results)")
    made.add_argument("--out", default="figures", help="folder of the pictures (default figures)")
    args = made.parse_args()
    log.set_up()
    try:
        frame = load(*args.results)
        with matplotlib.rc_context(STYLE):
            files = save(draw(frame[frame["status"] == "finished"]), Path(args.out), name)
    except UserError as error:
        log.complain(str(error))
        sys.exit(2)
    logger.info("drawn: %s", ", ".join(map(str, files)))


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PDF and PNG, with the command and the commit in their metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    git = own_git_state()
    commit = f"{git['commit']}{' and changes' if git['dirty'] else ''}" if git else "no repository"
    about = f"python -m experiments.{name}; h2o_lab {h2o_lab.__version__}, commit {commit}"
    pdf, png = folder / f"{name}.pdf", folder / f"{name}.png"
    figure.savefig(pdf, metadata={"Subject": about})
    figure.savefig(png, metadata={"Description": about})
    return [pdf, png]


def newest(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Of runs of the same cell, the last one."""
    return frame.sort_values("path").drop_duplicates(keys, keep="last")
