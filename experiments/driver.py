"""The command of a figure or table: its cells are picked from stored results, run if asked for, drawn and shown."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import pandas as pd
from hydra.errors import HydraException
from matplotlib.figure import Figure
from rich.console import Console

from experiments.cells import Selection, expected, references, select
from experiments.checks import SHOWN, check_cells
from experiments.drawing import provenance, save
from experiments.scores import scored
from experiments.tables import Shown, as_markdown, as_rich
from h2o_lab import log
from h2o_lab.errors import UserError
from h2o_lab.results.look import STYLE

logger = logging.getLogger("h2o_lab.experiments")

SCALES = ("small", "paper")
PIPE_WIDTH = 160
"""Columns where nobody watches."""
RUN = ("-m", "h2o_lab.run")
FAILED_CELLS = 1
"""Exit code of a sweep of which some cells have no result."""


@dataclass(frozen=True)
class Experiment:
    """A figure or table of the paper, or a question of our own.

    Attributes:
        name: of the preset in `conf/experiment`, the module and the files.
        says: the module's docstring.
        draw: makes the figure, from a row per cell: the columns of `load` (`path` is the result folder), those that
            the cell's overrides set, and `metric`, `score`, `low`, `high` (shares in percent).
        table: makes the table from the same rows.
        paper: overrides that make the small preset the paper's experiment.
        reference: whether the full cache belongs to it besides, for presets that sweep fields it does not have.
        shows: what tells cells apart in it.
        needs: overrides without which there is nothing to draw, with the full name of the key.
        scored: whether it shows the score, so that another metric can be chosen.
    """

    name: str
    says: str | None
    draw: Callable[[pd.DataFrame], Figure] | None = None
    table: Callable[[pd.DataFrame], Shown] | None = None
    paper: tuple[str, ...] = ()
    reference: bool = False
    shows: tuple[str, ...] = SHOWN
    needs: tuple[str, ...] = ()
    scored: bool = True

    def overrides(self, scale: str, given: Sequence[str]) -> list[str]:
        """What describes the cells, as for `python -m h2o_lab.run -m`."""
        return [f"+experiment={self.name}", *(self.paper if scale == "paper" else ()), *given]


def main(experiment: Experiment, argv: Sequence[str] | None = None) -> None:
    """Draw an experiment out of stored results; with `--run`, compute what is missing before.

    Bad input, or no cell at all, ends the process with code 2 and one sentence; cells that failed with code 1.
    """
    asked = _parser(experiment).parse_intermixed_args(argv)
    log.set_up()
    folders = asked.results or ["results"]
    place = [f"results_dir={folders[0]}"] if asked.results else []
    try:
        overrides = experiment.overrides(asked.scale, asked.overrides)
        if asked.metric and not experiment.scored:
            raise UserError(f"--metric={asked.metric} has no effect: {experiment.name} does not show the score.")
        sweep = expected(overrides)
        check_cells(sweep, experiment.name, experiment.needs, experiment.shows)
        besides = references(sweep) if experiment.reference else []
        check_cells(besides, experiment.name, (), experiment.shows)
        command = [*RUN, "-m", *overrides, *place]
        code = 0
        found = select([*sweep, *besides], *folders)
        if asked.run:
            _make(Path(asked.out))
            missing = {cell.key for cell in found.missing}
            commands = [command] if missing & {cell.key for cell in sweep} else []
            commands += [[*RUN, *cell.overrides, *place] for cell in besides if cell.key in missing]
            code = max((_run(words) for words in commands), default=0)
            found = select([*sweep, *besides], *folders)
        _tell(experiment, found, folders, asked)
        _make(Path(asked.out))
        files = _write(experiment, scored(found.frame, asked.metric), Path(asked.out))
    except (UserError, HydraException) as error:
        log.complain(" ".join(str(error).partition("Config search path")[0].split()))
        sys.exit(2)
    logger.info("written: %s", ", ".join(map(str, files)))
    sys.exit(code)


def _make(folder: Path) -> None:
    """The folder of the files, before anything slow starts.

    Raises:
        UserError: it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out={folder} cannot be made: {error.strerror}; name a folder.") from error
    if not os.access(folder, os.W_OK):
        raise UserError(f"--out={folder} cannot be written: name another folder.")


def _run(words: list[str]) -> int:
    """Start a command of this interpreter; where it does not get to its cells, this one ends with its exit code."""
    code = subprocess.run([sys.executable, *words], check=False).returncode
    if code not in (0, FAILED_CELLS):
        sys.exit(code)
    return code


def _parser(experiment: Experiment) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=f"python -m experiments.{experiment.name}",
        description=experiment.says,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"--scale paper is: {' '.join(experiment.paper) or 'the same'}",
    )
    made.add_argument("overrides", nargs="*", help="as for python -m h2o_lab.run -m; they describe the cells too")
    made.add_argument(
        "--results", action="append", metavar="DIR", help="folder of results (default results); may be repeated"
    )
    made.add_argument("--out", default="figures", help="folder that receives the files (default figures)")
    made.add_argument("--run", action="store_true", help="compute first what is missing, into the first folder")
    made.add_argument(
        "--scale",
        choices=SCALES,
        default="small",
        help="small: a 135M model, packaged questions (default); paper: the paper's models and data, see below",
    )
    made.add_argument("--metric", help="what is shown (default acc_norm where a task has it, else the main metric)")
    return made


def _tell(experiment: Experiment, found: Selection, folders: Sequence[str], asked: argparse.Namespace) -> None:
    """Name the cells that are missing.

    Raises:
        UserError: all are.
    """
    places = ", ".join(folders)
    scale = ["--scale", asked.scale] if asked.scale != SCALES[0] else []
    named = [word for folder in asked.results or () for word in ("--results", folder)]
    command = shlex.join(
        ["python", "-m", f"experiments.{experiment.name}", "--run", *scale, *named, *asked.overrides]
    )
    if found.frame.empty:
        raise UserError(f"none of the {found.total} cells of {experiment.name} is in {places}: run {command}")
    if found.missing:
        logger.warning(
            "%d of the %d cells of %s are not in %s, such as %s: run %s",
            len(found.missing),
            found.total,
            experiment.name,
            places,
            " ".join(found.missing[0].overrides),
            command,
        )


def _write(experiment: Experiment, frame: pd.DataFrame, folder: Path) -> list[Path]:
    """The figure and the table, as far as the experiment has them; the table is shown too."""
    files = []
    if experiment.draw is not None:
        with matplotlib.rc_context(STYLE):
            files += save(experiment.draw(frame), folder, experiment.name)
    if experiment.table is not None:
        shown = experiment.table(frame)
        markdown, csv = folder / f"{experiment.name}.md", folder / f"{experiment.name}.csv"
        markdown.write_text(f"{as_markdown(shown)}\n<!-- {provenance(experiment.name)} -->\n", encoding="utf-8")
        shown.numbers.to_csv(csv, index=False)
        files += [markdown, csv]
        console = Console()
        (console if console.is_terminal else Console(width=PIPE_WIDTH)).print(as_rich(shown))
    return files
