"""`python -m h2o_lab.run --help`: nothing that can be set is missing, and what it says is true."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
import yaml
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from h2o_lab import sweep
from h2o_lab.attention.cache import PREFILLS
from h2o_lab.attention.executors import EXECUTORS
from h2o_lab.attention.hook import POSITIONS
from h2o_lab.config import Config, config_dir, register

ROOT = Path(__file__).resolve().parents[2]
GROUPS = sorted(path.name for path in config_dir().iterdir() if path.is_dir() and path.name != "hydra")


@pytest.fixture(scope="module")
def said() -> str:
    """What `--help` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "h2o_lab.run", "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def line_of(said: str, key: str) -> str:
    """The one line that explains a key."""
    (line,) = re.findall(rf"^{re.escape(key)}  .*$", said, re.MULTILINE)
    return line


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_is_explained_and_every_option_named(said, group):
    assert len(line_of(said, group).split()) > 5
    (options,) = re.findall(rf"^{group}: (.*)$", said, re.MULTILINE)
    assert sorted(options.split(", ")) == sorted(file.stem for file in (config_dir() / group).glob("*.yaml"))


@pytest.mark.parametrize("group", ["launcher", "sweeper"])
def test_every_preset_for_sweeps_is_named(said, group):
    line = line_of(said, f"hydra/{group}")
    presets = [file.stem for file in (config_dir() / "hydra" / group).glob("*.yaml")]
    assert sorted(re.findall(r"\bh2o_\w+", line)) == sorted(presets)
    assert presets


@pytest.mark.parametrize("field", fields(Config), ids=lambda field: field.name)
def test_every_key_is_explained_with_its_default(said, field):
    line = line_of(said, field.name)
    (default,) = re.findall(r"\(([^()]*)\)$", line)
    if field.name in GROUPS:
        chosen = yaml.safe_load((config_dir() / "config.yaml").read_text())["defaults"]
        assert {field.name: default} in chosen
    else:
        assert field.default is not MISSING
        assert yaml.safe_load(default) == field.default


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("executor", EXECUTORS),
        ("prefill", PREFILLS),
        ("positions", POSITIONS),
        ("budget_base", ("prompt", "sequence")),
        ("resume", ("true", "false")),
    ],
)
def test_every_allowed_word_is_named(said, key, words):
    allowed = re.sub(r"\([^()]*\)$", "", line_of(said, key))
    assert [word for word in words if not re.search(rf"\b{word}\b", allowed)] == []


def test_the_commands_that_it_names_exist(said):
    modules = set(re.findall(r"python -m ([\w.]+)", said))
    assert {"h2o_lab.run", "h2o_lab.list", "h2o_lab.plan", "h2o_lab.verify"} <= modules
    assert [module for module in modules if importlib.util.find_spec(module) is None] == []
    assert re.search(r'^h2o-lab = "h2o_lab\.run:\w+"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert 'eval "$(h2o-lab -sc install=bash)"' in said


def test_its_two_examples_are_cells(said):
    register()
    examples = re.findall(r"^ +python -m h2o_lab\.run (?:-m )?(policy=.*)$", said, re.MULTILINE)
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        counts = [len(sweep.cells(example.split(), loader)) for example in examples]
    assert counts == [1, 9]


def test_lines_fit_a_wide_terminal(said):
    lines = [line for line in said.splitlines() if not re.match(r"[\w/]+: ", line)]
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("policy=str", ["policy=streaming", "policy=strided", "policy=strided_h2"]), ("budget_b", ["budget_base="])],
)
def test_the_tab_key_completes_h2o_lab(typed, offered):
    script = Path(sys.executable).with_name("h2o-lab")
    if not script.exists() or shutil.which("bash") is None:
        pytest.skip("the console script or bash is missing")
    press = f"""
        eval "$(h2o-lab -sc install=bash)"
        COMP_LINE="h2o-lab {typed}" COMP_CWORD=1
        COMP_POINT=${{#COMP_LINE}}
        hydra_bash_completion
        echo "${{COMPREPLY[@]}}"
    """
    environment = os.environ | {"PATH": f"{script.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", press], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == offered, done.stderr
