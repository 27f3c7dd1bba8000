"""Reading results back."""

import logging
import math
import subprocess
import sys
from pathlib import Path

import pytest

from h2o_lab.errors import UserError
from h2o_lab.results import (
    load,
    load_samples,
    open_result,
)
from tests.support.stored import cell, rendered, store


def test_load_gives_one_flat_row_per_cell(tmp_path):
    store(tmp_path / "a" / "0")
    store(tmp_path / "a" / "1", policy="full", budget=None, acc=0.7)
    store(tmp_path / "b")
    frame = load(tmp_path / "a", tmp_path / "b" / "result.json", str(tmp_path / "a" / "0"))
    assert list(frame["path"]) == [str(tmp_path / name) for name in ("a/0", "a/1", "b")]
    first = frame.iloc[0]
    assert (first["status"], first["acc"], first["acc_stderr"]) == ("finished", 0.66, 0.05)
    assert (first["k_mean"], first["k_min"], first["k_max"]) == (71.2, 40, 130)
    assert first["kv_bytes.resident_mean"] == 3 * 2**20
    assert first["git_commit"] == "abc"
    assert math.isnan(frame["budget"][1])


def test_a_metric_never_takes_the_place_of_another_key(tmp_path):
    store(tmp_path, metrics={"samples": 0.5, "acc": 0.1})
    row = load(tmp_path).iloc[0]
    assert (row["samples"], row["metrics.samples"], row["acc"]) == (64, 0.5, 0.1)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b'{"schema": 1, "sta',
        b"[]",
        b"\xff\xfe",
        b'{"schema": 99, "status": "finished"}',
        b'{"schema": 1}',
    ],
)
def test_a_damaged_result_is_a_row_that_says_so(tmp_path, damage):
    store(tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "result.json").write_bytes(damage)
    (tmp_path / "odd" / "result.json").mkdir(parents=True)
    frame = load(tmp_path).set_index("path")
    assert frame.loc[str(tmp_path / "good"), "status"] == "finished"
    for name in ("bad", "odd"):
        assert frame.loc[str(tmp_path / name), "status"] == "unreadable"
        assert "result.json cannot be read" in frame.loc[str(tmp_path / name), "error"]
    assert "unreadable: result.json cannot be read" in rendered(load(tmp_path), width=200)


def test_without_results_there_is_one_clear_sentence(tmp_path):
    with pytest.raises(UserError, match=r"No result\.json in or below"):
        load(tmp_path)
    with pytest.raises(UserError, match="no folder"):
        load()
    with pytest.raises(UserError, match="There is no file or folder"):
        load(tmp_path / "absent")
    with pytest.raises(UserError, match=r"No samples\.jsonl"):
        load_samples(tmp_path)


def test_samples_know_their_cell_and_a_cut_line_is_counted(tmp_path, caplog):
    opened = open_result(tmp_path / "0")
    opened.write_samples([{"doc_id": 0, "acc": 1.0}, {"doc_id": 1, "acc": 0.0}])
    opened.finish(cell())
    unfinished = open_result(tmp_path / "1")
    unfinished.write_samples([{"doc_id": 0}])
    with (tmp_path / "0" / "samples.jsonl").open("a") as file:
        file.write('{"doc_id": 2, "ac')
    with caplog.at_level(logging.WARNING):
        frame = load_samples(tmp_path)
    assert list(frame["doc_id"]) == [0, 1, 0]
    assert list(frame["policy"][:2]) == ["h2o", "h2o"]
    assert list(frame["budget"][:2]) == [0.2, 0.2]
    assert frame["policy"].isna()[2]
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / '0' / 'samples.jsonl'}: 1 damaged line(s) left out, 2 read."
    ]


def test_reading_results_does_not_load_the_heavy_libraries():
    code = "import sys, h2o_lab.results; print({'torch', 'wandb', 'pandas', 'rich'} & set(sys.modules))"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
