"""Short names for contents: equal contents have equal names, on any machine."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from h2o_lab.results.store import to_json

LENGTH = 16
EDGE = 2**20
"""Bytes of a large file's beginning and end that stand for it: training changes all of them."""


def fingerprint(*parts: Any) -> str:
    """Of anything that a result can hold: 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(to_json(part).encode("utf-8", "backslashreplace") + b"\0")
    return digest.hexdigest()[:LENGTH]


def fingerprint_files(files: list[Path]) -> str:
    """Of files by name, size and content; of those above 2 MiB the first and the last mebibyte are read."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.name):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\0".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(EDGE))
            if size > EDGE:
                stream.seek(max(EDGE, size - EDGE))
                digest.update(stream.read(EDGE))
    return digest.hexdigest()[:LENGTH]
