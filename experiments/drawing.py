"""Figures as files, and what these say about where they come from."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from matplotlib.figure import Figure

import h2o_lab
from h2o_lab.results.environment import own_git_state


def provenance(name: str) -> str:
    """The command that is running, and the version and commit of the code."""
    git = own_git_state()
    commit = f"{git['commit']}{' and changes' if git['dirty'] else ''}" if git else "no repository"
    command = shlex.join(["python", "-m", f"experiments.{name}", *sys.argv[1:]])
    return f"{command}; h2o_lab {h2o_lab.__version__}, commit {commit}"


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PDF and PNG, with the command and the commit in their metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    about = provenance(name)
    pdf, png = folder / f"{name}.pdf", folder / f"{name}.png"
    figure.savefig(pdf, metadata={"Subject": about})
    figure.savefig(png, metadata={"Description": about})
    return [pdf, png]
