"""The command of a figure: what it says of missing cells, refuses, runs and writes."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image

from experiments import driver, fig4, table1
from experiments.cells import expected
from experiments.checks import check_cells
from experiments.driver import Experiment, main
from h2o_lab import log, sweep
from h2o_lab.config import config_dir
from tests.support.figure_cells import SMALL, cells, warnings_of
from tests.support.stored_cells import stored

__all__ = ["cells"]  # a fixture

NO_FIGURES = ("debug", "smallest_budget")
"""Presets that are tools, not experiments."""
EXPERIMENTS = sorted(
    file.stem for file in (config_dir() / "experiment").glob("*.yaml") if file.stem not in NO_FIGURES
)
SCRIPTS = [
    file.stem
    for file in sorted(Path(driver.__file__).parent.glob("*.py"))
    if "EXPERIMENT = " in file.read_text(encoding="utf-8")
]


def experiment(name: str) -> Experiment:
    return import_module(f"experiments.{name}").EXPERIMENT


def said_by(monkeypatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(log, "complain", said.append)
    return said


def test_some_missing_cells_are_counted_and_named_with_the_command(cells, tmp_path, monkeypatch):
    warned = warnings_of(monkeypatch, driver)
    folder = stored(cells[:3], tmp_path / "results")
    with pytest.raises(SystemExit) as ended:
        main(fig4.EXPERIMENT, [*SMALL[1:], "--results", folder, "--out", str(tmp_path / "figures")])
    assert ended.value.code == 0
    (warning,) = warned
    assert warning.startswith("2 of the 5 cells of fig4 are not in ")
    assert "such as model=smollm2_135m task=piqa policy=local budget=0.1" in warning
    assert warning.endswith(f"run python -m experiments.fig4 --run --results {folder} task=piqa budget=0.1,0.2")
    assert (tmp_path / "figures" / "fig4.pdf").is_file()


def test_where_nothing_is_there_one_sentence_says_so(tmp_path, monkeypatch):
    said = said_by(monkeypatch)
    with pytest.raises(SystemExit) as ended:
        main(fig4.EXPERIMENT, ["--results", str(tmp_path / "nowhere"), "--scale", "paper", "model=opt_125m"])
    assert ended.value.code == 2
    assert said == [
        f"none of the 78 cells of fig4 is in {tmp_path}/nowhere: run python -m experiments.fig4 --run --scale "
        f"paper --results {tmp_path}/nowhere model=opt_125m"
    ]


@pytest.mark.parametrize(
    ("word", "sentence"),
    [("policy=h3o", "h3o"), ("budget=2", "budget=2.0 is out of range"), ("budget=interval(0,1)", "no list of")],
)
def test_a_wrong_override_is_one_sentence(word, sentence, monkeypatch):
    said = said_by(monkeypatch)
    with pytest.raises(SystemExit) as ended:
        main(fig4.EXPERIMENT, [word])
    assert ended.value.code == 2
    assert sentence in said[0]
    assert "\n" not in said[0]


def test_an_unknown_metric_is_named(cells, tmp_path, monkeypatch):
    said = said_by(monkeypatch)
    folder = stored(cells, tmp_path)
    with pytest.raises(SystemExit):
        main(fig4.EXPERIMENT, [*SMALL[1:], "--results", folder, "--metric", "f1"])
    assert said[0].startswith(f"--metric=f1 is not in {folder}")


@pytest.mark.parametrize(
    ("name", "words", "sentence"),
    [
        (
            "table2",
            ["policy=h2o", "policy.recent_fraction=0.1,0.9"],
            "recent_fraction=0.1 and policy.recent_fraction=",
        ),
        ("fig4", ["seed=0,1"], "would show seed=0 and seed=1 at one place"),
        ("fig4", ["policy=full", "positions=original,rolling"], "positions=original and positions=rolling"),
        ("fig4", ["model=local", "model.path=a/final,b/final"], "model.path=a/final and model.path=b/final"),
        ("heavy_count", ["policy.recent_tokens=16,32"], "policy.recent_tokens=16 and policy.recent_tokens=32"),
        ("heavy_count", ["budget_tokens=null", "budget=0.2"], "heavy_count needs budget=null, and not budget=0.2"),
        ("split", ["policy=h2o,h2o_mean"], "policy=h2o and policy=h2o_mean"),
        ("fig6_7", ["task=xsum,cnn_dm"], "task=xsum and task=cnn_dm"),
        ("occupancy", ["budget=0.1,0.2"], "budget=0.1 and budget=0.2"),
        ("fig2b", ["stats=none"], "fig2b needs stats=attention, and not stats=none"),
        ("fig5", ["task.mode=windowed"], "fig5 needs task.mode=streaming, and not task.mode=windowed"),
        ("needle", ["--metric", "accuracy"], "--metric=accuracy has no effect"),
        ("fig4", ["--out", __file__], f"--out={__file__} cannot be made"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_anything_is_run(name, words, sentence, monkeypatch, tmp_path):
    said = said_by(monkeypatch)
    started = Runs(monkeypatch, 0)
    with pytest.raises(SystemExit) as ended:
        main(experiment(name), ["--run", "--results", str(tmp_path), *words])
    assert (ended.value.code, started.commands) == (2, [])
    assert sentence in said[0]
    assert "\n" not in said[0]


class Runs:
    """Stands for the processes that `--run` starts."""

    def __init__(self, monkeypatch, code, then=lambda: None):
        self.commands: list[list[str]] = []
        self._code, self._then = code, then
        self._others = subprocess.run if not isinstance(subprocess.run, Runs) else subprocess.run._others
        monkeypatch.setattr(driver.subprocess, "run", self)

    def __call__(self, command, **options):
        if "h2o_lab.run" not in command:  # git, asked for the state of the code
            return self._others(command, **options)
        self.commands.append(command[1:])
        self._then()
        return subprocess.CompletedProcess(command, self._code)


def run(folder, tmp_path, *words):
    with pytest.raises(SystemExit) as ended:
        main(fig4.EXPERIMENT, ["--run", *words, "--results", str(folder), "--out", str(tmp_path / "figures")])
    return ended.value.code


def test_run_starts_the_sweep_that_the_preset_is_and_draws(cells, tmp_path, monkeypatch):
    folder = tmp_path / "results"
    started = Runs(monkeypatch, 0, lambda: stored(cells, folder))
    assert run(folder, tmp_path, *SMALL[1:]) == 0
    assert started.commands == [["-m", "h2o_lab.run", "-m", *SMALL, f"results_dir={folder}"]]
    assert (tmp_path / "figures" / "fig4.png").is_file()
    assert run(folder, tmp_path, *SMALL[1:]) == 0
    assert len(started.commands) == 1, "nothing was missing"


def test_a_sweep_that_does_not_start_passes_its_code_on_and_one_with_failed_cells_is_drawn(
    cells, tmp_path, monkeypatch
):
    folder = tmp_path / "results"
    Runs(monkeypatch, 2)
    assert run(folder, tmp_path, *SMALL[1:]) == 2
    Runs(monkeypatch, 1, lambda: stored(cells[:4], folder))
    assert run(folder, tmp_path, *SMALL[1:]) == 1
    assert (tmp_path / "figures" / "fig4.png").is_file()


def test_files_say_the_command_and_the_commit(cells, tmp_path, monkeypatch):
    folder = stored(cells, tmp_path / "results")
    words = [*SMALL[1:], "--results", folder, "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["x", *words])
    for made in (fig4.EXPERIMENT, Experiment("fig4", "", table=table1.table)):
        with pytest.raises(SystemExit):
            main(made, words)
    assert Image.open(tmp_path / "fig4.png").info["Description"].startswith("python -m experiments.fig4 task=piqa")
    assert b"; h2o_lab 0.1.0" in (tmp_path / "fig4.pdf").read_bytes()
    assert "<!-- python -m experiments.fig4 task=piqa" in (tmp_path / "fig4.md").read_text()


def test_every_preset_has_its_script_and_every_script_its_preset():
    assert sorted(SCRIPTS) == EXPERIMENTS
    for name in EXPERIMENTS:
        made = experiment(name)
        assert made.name == name
        assert (made.draw is None) != (made.table is None)
        assert f"python -m experiments.{name}" in (made.says or "")
        preset = (config_dir() / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")
        assert f"python -m experiments.{name} " in preset.replace("\n", " ")


@pytest.mark.parametrize("scale", driver.SCALES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_cells_of_every_experiment_compose(name, scale, monkeypatch):
    whole = sweep.cells

    def some(overrides, loader):
        """Cells that have every word of the sweep among them."""
        seen: set[str] = set()
        return [
            words for words in whole(overrides, loader) if not seen.issuperset(words) and not seen.update(words)
        ]

    monkeypatch.setattr(sweep, "cells", some)
    made = experiment(name)
    cells = expected(made.overrides(scale, []))
    assert cells
    check_cells(cells, name, made.needs, made.shows)
    if scale == "paper":
        assert {cell.cfg.model.dtype for cell in cells} == {"float16"}
        assert {cell.cfg.model.source for cell in cells} == {"hub"}
    else:
        assert {cell.cfg.model.name for cell in cells} == {"smollm2_135m"}
