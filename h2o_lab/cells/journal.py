"""What a cell has got so far, batch by batch, so that a killed run goes on behind the last one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from h2o_lab.errors import UserError
from h2o_lab.results.store import to_json


class Journal:
    """Key to value, in a file of one line each that only grows; without a file nothing is remembered.

    A line that a kill or a full disk cut short is as if it had never been begun.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file = file
        self.known: dict[str, Any] = {}
        if file is not None and file.exists():
            self._read(file)

    def __len__(self) -> int:
        return len(self.known)

    def recall(self, key: str) -> Any | None:
        """What was noted under this key, by this process or an earlier one."""
        return self.known.get(key)

    def note(self, key: str, value: Any) -> None:
        """Remember a value that a result can hold; it is on the disk when this returns.

        Raises:
            UserError: the file cannot be written.
        """
        if self.file is None:
            return
        self.known[key] = value
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("ab") as stream:
                stream.write((to_json([key, value]) + "\n").encode("utf-8", "backslashreplace"))
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise UserError(
                f"Cannot write {self.file}: {error.strerror}; make room, or make it writable."
            ) from error

    def beside(self, name: str) -> Path | None:
        """A further file of the same cell; None where nothing is remembered."""
        return self.file.with_name(name) if self.file is not None else None

    def _read(self, file: Path) -> None:
        """Take over the lines that can be read, and cut off one that was not ended."""
        content = file.read_bytes()
        end = content.rfind(b"\n") + 1
        for line in content[:end].split(b"\n"):
            try:
                key, value = json.loads(line)
                self.known[key] = value
            except (ValueError, TypeError):
                continue
        if end < len(content):
            os.truncate(file, end)


class Echo(Journal):
    """The journal of another process that evaluates the same cell: what that one recalls is recalled here too.

    Args:
        known: what it held when the cell was begun.
    """

    def __init__(self, known: dict[str, Any]) -> None:
        super().__init__()
        self.known = known

    def note(self, key: str, value: Any) -> None:
        self.known[key] = value
