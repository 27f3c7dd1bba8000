"""`python -m h2o_lab.run` in a folder with small models and rows of questions."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.models import character_tokenizer, random_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """A folder with models `llama` and `opt`, and PIQA rows in `data`."""
    folder = tmp_path_factory.mktemp("run")
    for family in ("llama", "opt"):
        random_model(family).save_pretrained(folder / family)
        character_tokenizer().save_pretrained(folder / family)
    rows = [
        {
            "goal": f"walk to the place with the number {i} on it",
            "sol1": f"left {i}",
            "sol2": f"right {i}",
            "label": i % 2,
        }
        for i in range(24)
    ]
    (folder / "data" / "piqa").mkdir(parents=True)
    (folder / "data" / "piqa" / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def run(folder: Path, *overrides: str, small: bool = True) -> subprocess.CompletedProcess[str]:
    """`python -m h2o_lab.run` in a folder, on the small model and data unless the overrides say otherwise."""
    return subprocess.run(
        command(*overrides, small=small),
        cwd=folder,
        env=surroundings(folder),
        capture_output=True,
        text=True,
        check=False,
    )


def surroundings(folder: Path) -> dict[str, str]:
    """Environment variables of a run in a folder."""
    return os.environ | {"PYTHONPATH": str(ROOT), "H2O_LAB_CACHE": str(folder / "cache"), "COLUMNS": "200"}


def command(*overrides: str, small: bool = True) -> list[str]:
    defaults = {
        "model": "local",
        "model.path": "llama",
        "data": "folder",
        "data.dir": "data",
        "task.limit": "5",
        "task.num_fewshot": "1",
        "tracker": "none",
    }
    given = {override.partition("=")[0] for override in overrides}
    words = [f"{key}={value}" for key, value in defaults.items() if small and key not in given]
    if "model" in given:
        words = [word for word in words if not word.startswith("model.")]
    return [sys.executable, "-m", "h2o_lab.run", *overrides, *words]
