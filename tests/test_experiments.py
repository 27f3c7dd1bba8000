"""The command of a figure: which stored results are its cells, what is said of missing ones, what is shown."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from PIL import Image

from experiments import cells as cells_module
from experiments import driver, fig4, table1
from experiments.cells import expected, references, select
from experiments.checks import check_cells
from experiments.driver import Experiment, main
from h2o_lab import log, sweep
from h2o_lab.cells.identity import SEMANTICS, STATISTICS
from h2o_lab.checks import build_policy
from h2o_lab.compute import task_data
from h2o_lab.config import config_dir
from h2o_lab.errors import UserError
from h2o_lab.models import model_fingerprint
from tests.stored_cells import store, stored

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
FIG4 = ["+experiment=fig4"]
SMALL = [*FIG4, "task=piqa", "budget=0.1,0.2"]
"""Five cells: the full cache, and h2o and local at two budgets."""


@pytest.fixture(scope="module")
def cells():
    return expected(SMALL)


def experiment(name: str) -> Experiment:
    return import_module(f"experiments.{name}").EXPERIMENT


def said_by(monkeypatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(log, "complain", said.append)
    return said


def test_the_full_cache_is_one_cell_whatever_the_budgets(cells):
    assert [(cell.policy, cell.cfg.budget) for cell in cells] == [
        ("full", 0.1),
        ("h2o", 0.1),
        ("h2o", 0.2),
        ("local", 0.1),
        ("local", 0.2),
    ]


def test_the_frame_has_the_cells_of_the_preset_in_its_order_and_no_others(cells, tmp_path):
    other = expected(["policy=h2o", "budget=0.3"])
    folder = stored([*reversed(cells), *other], tmp_path)
    found = select(cells, folder)
    assert found.missing == []
    assert found.frame["policy"].tolist() == ["full", "h2o", "h2o", "local", "local"]
    assert [Path(path).name for path in found.frame["path"]] == ["4", "3", "2", "1", "0"]


@pytest.mark.parametrize(
    "changes",
    [
        ["task.limit=99"],
        ["policy.recent_fraction=0.25"],
        ["prefill=full"],
        ["seed=1"],
        ["task.num_fewshot=1"],
        ["data=folder", "data.dir=x"],
        ["model=opt_125m"],
        ["model.dtype=float16"],
        ["budget_base=sequence"],
    ],
)
def test_what_determines_a_result_tells_cells_apart(changes):
    plain = ["policy=h2o", "budget=0.2"]
    assert expected([*plain, *changes])[0].key != expected(plain)[0].key


@pytest.mark.parametrize(
    "changes",
    [
        ["results_dir=x", "tracker=none", "resume=false", "quiet=true", "within=0.1"],
        ["policy.recent_fraction=0.5"],
        ["model.device=cpu"],
        ["model.device_map=auto"],
    ],
)
def test_what_does_not_determine_it_does_not(changes):
    plain = ["policy=h2o", "budget=0.2"]
    assert expected([*plain, *changes])[0].key == expected(plain)[0].key


def test_folders_of_rows_and_models_may_have_moved():
    words = ["policy=h2o", "budget=0.2", "data=folder", "model=local"]
    here, there, other = (
        expected([*words, f"data.dir={place}/data", f"model.path={place}/{name}"])[0].key
        for place, name in (("a", "small"), ("/b/c", "small"), ("a", "large"))
    )
    assert here == there != other


def model_folder(folder: Path, weights: str) -> Path:
    """Files that stand for a model, in a folder called final."""
    folder = folder / "final"
    folder.mkdir(parents=True)
    for name, text in (("config.json", "{}"), ("model.safetensors", weights), ("tokenizer.json", "{}")):
        (folder / name).write_text(text)
    return folder


def warnings_of(monkeypatch, module) -> list[str]:
    warned: list[str] = []
    monkeypatch.setattr(module.logger, "warning", lambda text, *words: warned.append(text % words))
    return warned


def test_a_result_of_another_model_in_a_folder_of_the_same_name_does_not_count(tmp_path, monkeypatch):
    warned = warnings_of(monkeypatch, cells_module)
    paths = [model_folder(tmp_path / name, name) for name in ("a", "b")]
    a, b, moved = (
        expected(["policy=h2o", "budget=0.2", "model=local", f"model.path={path}"])[0]
        for path in (*paths, tmp_path / "c" / "final")
    )
    assert a.key == b.key == moved.key
    folder = store(a, tmp_path / "results", content={"model": model_fingerprint(a.cfg.model), "data": "d"})
    assert select([a], str(folder)).missing == []
    assert select([moved], str(folder)).missing == []
    assert warned == []
    assert select([b], str(folder)).missing == [b]
    assert warned == [
        "not counted, being of another model or other data of the same name: results of 1 cell(s), such as "
        f"{folder}"
    ]


def test_a_result_of_other_rows_in_a_file_of_the_same_name_does_not_count(tmp_path):
    cells = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "book.txt").write_text(f"the text {name}")
        cells += expected(["policy=h2o", "budget=0.2", "task=text", f"task.path={tmp_path / name / 'book.txt'}"])
    data = task_data(OmegaConf.to_yaml(cells[0].cfg.task), OmegaConf.to_yaml(cells[0].cfg.data))[1]
    folder = store(cells[0], tmp_path / "results", content={"model": "m", "data": data})
    found = select(cells, str(folder))
    assert len(found.frame) == 1
    assert found.missing == [cells[1]]


def test_where_nothing_is_at_the_places_cells_of_the_newest_content_stand_together(tmp_path):
    cells = expected(["policy=h2o", "budget=0.1,0.2", "task=piqa", "data=folder", "data.dir=gone"])
    for name, cell, year, data in (("0", 0, 2001, "old"), ("1", 1, 2001, "old"), ("2", 1, 2002, "new")):
        folder = store(cells[cell], tmp_path / name, content={"model": "m", "data": data})
        record = json.loads((folder / "result.json").read_text()) | {"finished": f"{year}"}
        (folder / "result.json").write_text(json.dumps(record))
    found = select(cells, str(tmp_path))
    assert [Path(path).name for path in found.frame["path"]] == ["2"]
    assert found.missing == [cells[0]]


def test_the_newest_finished_result_of_a_cell_counts(cells, tmp_path):
    cell = cells[1]
    for name, year, status in (("b", 2001, "finished"), ("a", 2002, "finished"), ("c", 2003, "failed")):
        folder = store(cell, tmp_path / name)
        record = json.loads((folder / "result.json").read_text()) | {"finished": f"{year}", "status": status}
        (folder / "result.json").write_text(json.dumps(record))
    found = select([cell], str(tmp_path))
    assert Path(found.frame["path"][0]).name == "a"


def test_a_copy_stands_for_its_original_where_that_has_another_configuration(cells, tmp_path):
    (original,) = expected(["policy=h2o", "budget=0.1", "task=piqa", "data=folder", "data.dir=x"])
    store(original, tmp_path / "0", cell="same")
    store(cells[1], tmp_path / "1", cell="same", reused_from="0")
    assert Path(select([cells[1]], str(tmp_path)).frame["path"][0]).name == "1"
    assert Path(select([original], str(tmp_path)).frame["path"][0]).name == "0"


def test_results_of_an_older_meaning_and_of_other_programs_are_passed_over(cells, tmp_path):
    store(cells[1], tmp_path / "0", semantics=SEMANTICS - 1)
    store(cells[1], tmp_path / "1")
    (tmp_path / "1" / "config.yaml").write_text("threads: 1\n")
    assert select([cells[1]], str(tmp_path), "nowhere").missing == [cells[1]]


def test_statistics_of_an_older_meaning_are_passed_over(tmp_path):
    (cell,) = expected(["policy=full", "task=pg19", "task.mode=windowed", "stats=attention"])
    store(cell, tmp_path / "0")
    store(cell, tmp_path / "1", statistics=STATISTICS - 1)
    assert select([cell], str(tmp_path)).missing == [cell]
    store(cell, tmp_path / "2", statistics=STATISTICS)
    assert select([cell], str(tmp_path)).frame["path"].tolist() == [str(tmp_path / "2")]


def test_overridden_fields_of_a_policy_are_columns(tmp_path):
    cells = expected(["+experiment=split", "task=piqa", "policy.recent_fraction=0.25,1", "budget=0.1"])
    frame = select(cells, stored(cells, tmp_path)).frame
    assert frame["policy.recent_fraction"].tolist() == [0.25, 1.0]
    assert frame["policy"].tolist() == ["h2o", "h2o"]


def test_a_sweep_over_fields_has_the_full_cache_beside_it():
    cells = expected(["+experiment=split", "task=piqa"])
    (full,) = references(cells)
    assert full.policy == "full"
    assert full.key in {cell.key for cell in expected(FIG4)}
    assert [word for word in full.overrides if word.startswith(("policy", "budget"))] == ["policy=full"]
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        alone = compose("config", list(full.overrides))
    assert (alone.task.name, build_policy(alone.policy).name) == ("piqa", "full")


def test_experiments_share_their_cells():
    def at_a_fifth(*names):
        return [
            {cell.key for cell in expected([f"+experiment={name}", "task=piqa", "budget=0.2"])} for name in names
        ]

    fig4_cells, shots, alone, summaries, repetition = (
        *at_a_fifth("fig4", "table1", "table9"),
        *({cell.key for cell in expected([f"+experiment={name}"])} for name in ("fig4_summaries", "fig6_7")),
    )
    assert len(fig4_cells & shots) == 2
    assert fig4_cells < alone
    assert repetition < summaries


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


def test_a_sweeper_that_searches_has_no_cells():
    with pytest.raises(UserError, match="hydra/sweeper=h2o_optuna chooses its cells as it goes"):
        expected(["+experiment=smallest_budget", "policy=h2o"])
