"""What a sweep says when it is over."""

import logging
import sys
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from h2o_lab.errors import UserError
from h2o_lab.results.collect import load
from h2o_lab.results.store import RESULT
from h2o_lab.results.table import sweep_table, write_table

log = logging.getLogger(__name__)


class SweepSummary(Callback):
    """Hydra callback that shows the table of a sweep and stores it in the sweep's folder.

    Switched on by `hydra.callbacks.summary._target_: h2o_lab.results.callback.SweepSummary`.
    """

    def __init__(self) -> None:
        self._failed = 0

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Count cells that returned no metric, those among them that could not even open a folder."""
        finished = job_return.status is JobStatus.COMPLETED and job_return.return_value is not None
        self._failed += not finished

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Render every result below `hydra.sweep.dir`, say where they lie and how many cells failed.

        Ends the process with code 1 where a cell failed.
        """
        from rich.console import Console

        folder = Path(config.hydra.sweep.dir)
        try:
            frame = load(folder)
            markdown, _ = write_table(frame, folder)
        except UserError as error:
            log.warning("%s", error)
            if self._failed:
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
        if bad or self._failed:
            sys.exit(1)


def _count(folder: Path) -> tuple[int, int]:
    """How many cells have a record below a folder, and how many of these were taken over."""
    files = list(folder.rglob(RESULT))
    return len(files), sum('"reused_from"' in file.read_text(encoding="utf-8", errors="replace") for file in files)
