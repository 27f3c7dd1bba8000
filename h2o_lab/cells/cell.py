"""One place for each cell, however often and wherever it is started: nothing is computed twice.

`<results_dir>/.cells/<cell>/` holds a lock, the journal of what is half done, and the names of the result folders
that were opened for it. A cell is finished when one of them holds a finished result of this cell.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from h2o_lab.cells.journal import Journal
from h2o_lab.errors import UserError
from h2o_lab.results.store import RESULT, ResultFolder, write_atomic

log = logging.getLogger(__name__)

CELLS = ".cells"
OPENED, LOCK, PROGRESS = "opened", "lock", "journal.jsonl"


@dataclass(frozen=True)
class Cell:
    """A cell of a store.

    Attributes:
        root: the folder of all results.
        name: the cell's fingerprint.
    """

    root: Path
    name: str

    @property
    def place(self) -> Path:
        return self.root / CELLS / self.name

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """No other process works on this cell until the context ends; waits for one that does.

        Raises:
            UserError: the folder cannot be written.
        """
        try:
            self.place.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.place / LOCK)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                log.info("cell %s: another process works on it, waiting for its result", self.name)
                lock.acquire()
        except OSError as error:
            raise UserError(
                f"{self.place} cannot be locked: {error.strerror}; results need a writable folder with file locks."
            ) from error
        try:
            yield
        finally:
            lock.release()

    def finished(self) -> Path | None:
        """The folder of its newest finished result, if there is one."""
        folders = [self.root / name for name in reversed(self._opened())]
        return next((folder for folder in folders if self._is_finished(folder)), None)

    def begin(self, result: ResultFolder, *, anew: bool = False) -> Journal:
        """Compute the cell into this result folder; what is half done is in the journal, unless `anew`."""
        if anew:
            self._forget()
        names = [*self._opened(), os.path.relpath(result.path, self.root)]
        write_atomic(self.place / OPENED, "".join(f"{name}\n" for name in names))
        return Journal(self.place / PROGRESS)

    def conclude(self) -> None:
        """After the result was written: what was half done is not needed any more."""
        try:
            self._forget()
        except OSError as error:
            log.warning("%s cannot be cleared: %s", self.place, error.strerror)

    def reuse(self, finished: Path, result: ResultFolder, told: dict[str, Any]) -> dict[str, Any]:
        """Let a result folder hold a copy of the finished result; it says where it is from, and what is `told`."""
        return result.adopt(finished, {"reused_from": os.path.relpath(finished, self.root)} | told)

    def _opened(self) -> list[str]:
        try:
            return (self.place / OPENED).read_text(encoding="utf-8").split("\n")[:-1]
        except (OSError, UnicodeDecodeError):
            return []

    def _is_finished(self, folder: Path) -> bool:
        try:
            record = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return isinstance(record, dict) and record.get("status") == "finished" and record.get("cell") == self.name

    def _forget(self) -> None:
        for file in self.place.iterdir():
            if file.name in (OPENED, LOCK):
                continue
            if file.is_dir():
                shutil.rmtree(file)
            else:
                file.unlink()
