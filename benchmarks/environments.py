"""Environments of their own for what a benchmark compares, and processes in them that answer JSON with JSON."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock

from h2o_lab.cache_dir import cache_dir
from h2o_lab.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
READY = "ready.json"
"""Lies in an environment that is whole, and lists what it was made from."""


def requirements() -> dict[str, list[str]]:
    """What pip installs into each environment: in all of them the release of torch that runs here.

    kvpress brings the transformers that it pins; the other two have ours.
    """
    torch = f"torch=={version('torch').split('+')[0]}"
    transformers = f"transformers=={version('transformers')}"
    return {
        "transformers": [torch, transformers],
        "kvpress": [torch, "kvpress==0.5.5"],
        "h2o_lab": [torch, transformers, "--editable", str(ROOT)],
    }


def environment_python(name: str, wanted: list[str]) -> Path:
    """The interpreter of a virtual environment below the cache folder; the first call makes it (minutes).

    Raises:
        UserError: venv or pip fails.
    """
    about = {"python": platform.python_version(), "requirements": wanted}
    if "--editable" in wanted:
        about["project"] = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    digest = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:12]
    folder = cache_dir() / "environments" / f"{name}-{digest}"
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(folder.name + ".lock")):
        if not (folder / READY).exists():
            shutil.rmtree(folder, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(folder)], name)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _run([*pip, *wanted], name)
            (folder / READY).write_text(json.dumps(about, indent=1), encoding="utf-8")
    return python


def _run(command: list[str], name: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_surroundings())
    if done.returncode == 0:
        return
    lines = (done.stderr + done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
    reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1])
    raise UserError(
        f"the environment of {name} cannot be made ({reason.removeprefix('ERROR: ').rstrip('.')}): check the "
        "package index that pip uses, and the room below the cache folder (H2O_LAB_CACHE)."
    )


def _surroundings(threads: int = 1) -> dict[str, str]:
    """Environment variables without those that would lead to packages of this interpreter."""
    mine = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    count = {key: str(threads) for key in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")}
    return mine | count | {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class Worker:
    """A process that stays: it is sent JSON lines, and answers each with one.

    Args:
        name: for messages.
        python: the interpreter.
        program: its program, which says its versions first.
        options: the program's argument; `threads` of them is set for the libraries too.
        errors: the file that takes its standard error.

    Raises:
        UserError: the process ends before it answers.
    """

    def __init__(self, name: str, python: Path, program: Path, options: dict[str, Any], errors: Path) -> None:
        self.name, self.errors = name, errors
        with errors.open("w", encoding="utf-8") as stream:
            self.process = subprocess.Popen(
                [str(python), str(program), json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                env=_surroundings(options["threads"]),
            )
        self.versions = self._answer()

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """Send a command and wait for the answer."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, and the answer says why
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self.process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.process.wait()
        said = self.errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        reason = said[-1] if said else f"exit code {self.process.returncode}"
        raise UserError(f"{self.name} has ended without an answer ({reason}).")
