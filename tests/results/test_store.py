"""Result folders, and what a result was measured on."""

import json
import math
import os
import subprocess

import numpy as np
import pytest
import torch
import yaml

from h2o_lab.errors import UserError
from h2o_lab.results import (
    environment,
    load_samples,
    open_result,
    peak_memory_bytes,
)
from h2o_lab.results.environment import git_state
from tests.support.stored import failure


def test_a_finished_cell_holds_what_was_given_and_when(tmp_path):
    opened = open_result(tmp_path / "new" / "cell")
    opened.write_config({"model": {"name": "m", "path": tmp_path}, "budget": 0.2})
    opened.write_samples([{"id": 0, "text": "é\u2028\n"}, {"id": 1}])
    opened.finish({"model": "m", "status": "mine"})
    assert sorted(os.listdir(opened.path)) == ["config.yaml", "result.json", "samples.jsonl"]
    result = json.loads((opened.path / "result.json").read_text(encoding="utf-8"))
    assert result["schema"] == 1
    assert result["status"] == "finished"
    assert result["model"] == "m"
    assert result["started"] <= result["finished"]
    assert result["started"].endswith("+00:00")
    config = yaml.safe_load((opened.path / "config.yaml").read_text(encoding="utf-8"))
    assert config == {"model": {"name": "m", "path": str(tmp_path)}, "budget": 0.2}
    assert load_samples(opened.path)["text"][0] == "é\u2028\n"


def test_a_recorded_result_is_never_overwritten(tmp_path):
    opened = open_result(tmp_path)
    opened.finish({"acc": 1})
    before = (tmp_path / "result.json").read_bytes()
    for attempt in (
        lambda: open_result(tmp_path),
        lambda: opened.finish({"acc": 2}),
        lambda: opened.fail(ValueError("late")),
    ):
        with pytest.raises(UserError, match="already holds"):
            attempt()
    assert (tmp_path / "result.json").read_bytes() == before


def test_a_killed_run_leaves_a_folder_that_can_be_used_again(tmp_path):
    open_result(tmp_path).write_config({"budget": 0.1})
    again = open_result(tmp_path)
    again.write_config({"budget": 0.2})
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == {"budget": 0.2}


def test_an_interrupted_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    opened = open_result(tmp_path)
    opened.write_samples([{"id": 0}])

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(UserError, match=r"samples\.jsonl: No space left"):
        opened.write_samples([{"id": 1}])
    assert os.listdir(tmp_path) == ["samples.jsonl"]
    assert json.loads((tmp_path / "samples.jsonl").read_text()) == {"id": 0}


def test_a_folder_that_cannot_be_made_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Cannot create the result folder"):
        open_result(tmp_path / "file" / "cell")


def test_numbers_of_numpy_and_torch_are_numbers_and_what_is_no_number_is_null(tmp_path):
    given = {
        "numpy": [np.float32(0.5), np.int64(3), np.bool_(True), np.float64(0.25), np.arange(2)],
        "torch": [torch.tensor(2), torch.tensor([0.5], dtype=torch.bfloat16), torch.tensor(math.inf)],
        "none": [math.nan, -math.inf, np.float32("nan"), np.array([1.0, np.nan])],
        3: "\ud800",
    }
    written = open_result(tmp_path).finish(given)
    text = (tmp_path / "result.json").read_bytes().decode("utf-8")
    result = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert result == written
    assert result["numpy"] == [0.5, 3, True, 0.25, [0, 1]]
    assert result["torch"] == [2, [0.5], None]
    assert result["none"] == [None, None, None, [1.0, None]]
    assert result["3"] == "\ud800"
    assert oct((tmp_path / "result.json").stat().st_mode & 0o600) == "0o600"


def test_an_object_that_json_has_no_form_for_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(TypeError, match="cannot hold a object"):
        open_result(tmp_path).finish({"x": object()})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (UserError("budget is 2;\n  allowed is (0, 1]."), "budget is 2; allowed is (0, 1]."),
        (ValueError("bad shape"), "ValueError: bad shape"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_a_failed_cell_says_why_and_where(tmp_path, error, sentence):
    open_result(tmp_path).fail(failure(error), {"model": "m", "budget": 0.2})
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["status"], result["error"]) == ("failed", sentence)
    assert "stored.py" in result["traceback"]
    assert (result["model"], result["budget"]) == ("m", 0.2)


def test_the_environment_is_complete_and_holds_no_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "secret-of-the-user")
    found = environment("cpu")
    assert found["versions"]["torch"] == torch.__version__
    assert set(found["versions"]) >= {"python", "h2o_lab", "transformers", "lm_eval", "numba", "hydra-core"}
    assert found["threads"]["torch"] == torch.get_num_threads()
    assert found["cpu"]["model"]
    assert found["device"] == "cpu"
    written = open_result(tmp_path).finish({"environment": found})
    assert "secret-of-the-user" not in json.dumps(written)


def test_peak_memory_of_a_process_is_in_bytes():
    peak = peak_memory_bytes("cpu")
    assert peak.keys() == {"process"}
    assert 50 * 2**20 < peak["process"] < 2**40


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_git_state_is_that_of_the_repository_that_tracks_the_package(tmp_path, monkeypatch):
    package = tmp_path / "h2o_lab"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert git_state(package) is None  # no repository
    git(tmp_path, "init", "-q")
    (tmp_path / "other").write_text("")
    git(tmp_path, "add", "other")
    git(tmp_path, "commit", "-qm", "one")
    assert git_state(package) is None  # somebody else's repository
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "two")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "results").write_text("")
    assert git_state(package) == {"commit": commit, "dirty": False}
    (package / "policy.py").write_text("")
    assert git_state(package) == {"commit": commit, "dirty": True}
    monkeypatch.setenv("PATH", "")
    assert git_state(package) is None  # no git
