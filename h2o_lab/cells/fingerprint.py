"""Short names for contents: equal contents have equal names, on any machine."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

LENGTH = 16


def fingerprint(*parts: Any) -> str:
    """Of plain values, in whatever order their keys stand: 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(json.dumps(part, sort_keys=True).encode() + b"\0")
    return digest.hexdigest()[:LENGTH]


def fingerprint_files(files: list[Path]) -> str:
    """Of files by name and content; each is read once in a process, unless it changes (a second a gigabyte)."""
    states = [(file, file.stat()) for file in sorted(files, key=lambda file: file.name)]
    return fingerprint([[file.name, _digest(file, at.st_size, at.st_mtime_ns, at.st_ino)] for file, at in states])


@lru_cache
def _digest(file: Path, size: int, changed: int, number: int) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
