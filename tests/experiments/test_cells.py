"""Which cells an experiment has, and which stored results are theirs."""

import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from experiments import cells as cells_module
from experiments.cells import expected, references, select
from h2o_lab.cells.identity import SEMANTICS, STATISTICS
from h2o_lab.checks import build_policy
from h2o_lab.compute import task_data
from h2o_lab.config import config_dir
from h2o_lab.errors import UserError
from h2o_lab.models import model_fingerprint
from tests.support.figure_cells import FIG4, cells, warnings_of
from tests.support.stored_cells import store, stored

__all__ = ["cells"]  # a fixture


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


def test_a_sweeper_that_searches_has_no_cells():
    with pytest.raises(UserError, match="hydra/sweeper=h2o_optuna chooses its cells as it goes"):
        expected(["+experiment=smallest_budget", "policy=h2o"])
