"""What a result was measured on: versions, source, machine. Environment variables are never recorded."""

import os
import platform
import subprocess
import sys
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from h2o_lab import __version__

if TYPE_CHECKING:
    import torch

PACKAGES = ("torch", "transformers", "lm_eval", "numba", "triton", "hydra-core")


def environment(device: "torch.device | str | None" = None) -> dict[str, Any]:
    """Versions, git state and machine of this process; `device` is by default cuda if there is any."""
    import psutil
    import torch

    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return {
        "versions": {"python": platform.python_version(), "h2o_lab": __version__} | _versions(),
        "git": own_git_state(),
        "platform": platform.platform(),
        "cpu": {
            "model": _cpu_model(),
            "cores": psutil.cpu_count(logical=False),
            "threads": os.cpu_count(),
        },
        "memory_bytes": psutil.virtual_memory().total,
        "threads": {"torch": torch.get_num_threads(), "numba": _numba_threads()},
        "device": torch.cuda.get_device_name(place) if place.type == "cuda" else place.type,
    }


def peak_memory_bytes(device: "torch.device | str") -> dict[str, int]:
    """The most memory in use so far, in bytes.

    `process` is resident memory since the process began, so a later cell of one sweep includes the earlier
    ones; `cuda`, on a cuda `device` only, is what tensors took since `reset_peak_memory`.
    """
    import torch

    place = torch.device(device)
    peak = {"process": _peak_resident()}
    if place.type == "cuda":
        peak["cuda"] = torch.cuda.max_memory_allocated(place)
    return peak


def memory_bytes(device: "torch.device | str") -> int:
    """Memory in use now, in bytes: of tensors on a cuda `device`, else what this process has resident."""
    import psutil
    import torch

    if torch.device(device).type == "cuda":
        return torch.cuda.memory_allocated(torch.device(device))
    return psutil.Process().memory_info().rss


def reset_peak_memory(device: "torch.device | str") -> None:
    """Start counting the peak of a cuda `device` anew; that of the process cannot be."""
    import torch

    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(torch.device(device))


@lru_cache
def own_git_state() -> dict[str, Any] | None:
    """Of this package, asked once in a process: what is edited while it runs is not what it runs."""
    return git_state(Path(__file__).resolve().parents[1])


def git_state(package: Path) -> dict[str, Any] | None:
    """Commit of the repository that tracks the folder `package`; dirty if it or `conf` beside it differ.

    None where no repository tracks it (a wheel, even inside somebody's repository) or there is no git.
    """
    root = package.parent
    tracked = _git(root, "ls-files", "--error-unmatch", f"{package.name}/__init__.py")
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--", package.name, "conf")
    if tracked is None or commit is None or changes is None:
        return None
    return {"commit": commit, "dirty": bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _numba_threads() -> int | None:
    numba = sys.modules.get("numba")  # a run that has not loaded it does not use it
    return numba.get_num_threads() if numba else None


def _peak_resident() -> int:
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
