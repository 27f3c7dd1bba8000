"""What a sweep says when it is over."""

import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from h2o_lab.errors import UserError
from h2o_lab.results.collect import load
from h2o_lab.results.store import RESULT
from h2o_lab.results.table import sweep_table, write_table

log = logging.getLogger(__name__)

FAILED = ".failed"
"""File of a sweep's folder while it runs: a line for each cell that failed, in whatever process that was."""
FOUND = "optimization_results.yaml"
"""File in which Hydra's optuna sweeper leaves what it found."""


class SweepSummary(Callback):
    """Hydra callback that shows the table of a sweep and stores it in the sweep's folder.

    Switched on by `hydra.callbacks.summary._target_: h2o_lab.results.callback.SweepSummary`.
    """

    def __init__(self) -> None:
        self._failed = False

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Forget what an earlier sweep into the same folder, which was killed, has left."""
        with suppress(OSError):
            (Path(config.hydra.sweep.dir) / FAILED).unlink(missing_ok=True)

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Note a cell that returned no metric; it may be one that could not even open a folder.

        Runs in the process of the cell, which is not always the one that sums up.
        """
        finished = job_return.status is JobStatus.COMPLETED and job_return.return_value is not None
        if finished or OmegaConf.select(config, "hydra.mode") == RunMode.RUN:
            return
        self._failed = True
        with suppress(OSError), (Path(config.hydra.sweep.dir) / FAILED).open("a", encoding="utf-8") as file:
            file.write(f"{OmegaConf.select(config, 'hydra.job.num')}\n")

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Render every result below `hydra.sweep.dir`, say where they lie and how many cells failed.

        Ends the process with code 1 where a cell failed.
        """
        from rich.console import Console

        folder = Path(config.hydra.sweep.dir)
        failed = self._failed or (folder / FAILED).is_file()
        with suppress(OSError):
            (folder / FAILED).unlink(missing_ok=True)
        try:
            frame = load(folder)
            markdown, _ = write_table(frame, folder)
        except UserError as error:
            log.warning("%s", error)
            if failed:
                sys.exit(1)
            return
        console = Console()
        if not console.is_terminal:
            console = Console(width=100)
        console.print(sweep_table(frame))
        bad = int((frame["status"] != "finished").sum())
        asked, again = _count(folder)
        found = f", {again} found finished" if again else ""
        console.print(
            f"{asked} cells, {bad} without a result{found}. Results: {folder}, table: {markdown}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        if best := _best(folder):
            console.print(best, markup=False, highlight=False, soft_wrap=True)
        if bad or failed:
            sys.exit(1)


def _best(folder: Path) -> str:
    """What a search found, in one line; empty where there was none."""
    try:
        found = yaml.safe_load((folder / FOUND).read_text(encoding="utf-8"))
        words = " ".join(f"{key}={value}" for key, value in found["best_params"].items())
        return f"Best: {words}, value {found['best_value']:.4g}, from {folder / FOUND}"
    except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError):
        return ""


def _count(folder: Path) -> tuple[int, int]:
    """How many cells have a record below a folder, and how many of these were taken over.

    A record inside the folder of another is what that was compared with, and no cell that was asked for.
    """
    files = [file for file in folder.rglob(RESULT) if not (file.parent.parent / RESULT).exists()]
    return len(files), sum('"reused_from"' in file.read_text(encoding="utf-8", errors="replace") for file in files)
