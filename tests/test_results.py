"""Result folders, reading them back, and the table of a sweep."""

import json
import logging
import math
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf
from rich.console import Console

from h2o_lab.errors import UserError
from h2o_lab.results import (
    environment,
    load,
    load_samples,
    open_result,
    peak_memory_bytes,
    sweep_table,
    write_table,
)
from h2o_lab.results.callback import SweepSummary
from h2o_lab.results.environment import git_state


def cell(policy="h2o", budget=0.2, acc=0.66, **other):
    """A result as the runner writes it, in short."""
    return {
        **{
            "model": "smollm2_135m",
            "task": "piqa",
            "policy": policy,
            "budget": budget,
            "budget_tokens": None,
        },
        **{"seed": 0, "metrics": {"acc": acc, "acc_stderr": 0.05}, "main_metric": "acc", "samples": 64},
        **{"k": {"mean": 71.2, "min": 40, "max": 130, "cut_samples": 0}},
        **{"kv_bytes": {"resident_mean": 3 * 2**20}, "tokens_per_second": 1234.5},
        **{"environment": {"git": {"commit": "abc", "dirty": False}}},
        **{"overrides": [f"policy={policy}", f"budget={budget}", "task.limit=64"]},
        **other,
    }


def store(folder, **changes):
    open_result(folder).finish(cell(**changes))
    return folder


def rendered(frame, width=100):
    console = Console(file=StringIO(), width=width)
    console.print(sweep_table(frame))
    return console.file.getvalue()


def failure(error):
    """`error` with the traceback that raising it gives."""
    try:
        raise error
    except type(error) as caught:
        return caught


# --- store


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
    assert "test_results.py" in result["traceback"]
    assert (result["model"], result["budget"]) == ("m", 0.2)


# --- environment


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


# --- collect


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
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# --- table


@pytest.fixture
def sweep(tmp_path):
    """Two tasks; `full` ran once per budget; one cell failed; one file is damaged."""
    store(tmp_path / "0", policy="h2o", budget=0.4, acc=0.64)
    store(tmp_path / "1", policy="h2o", budget=0.2, acc=0.61)
    store(tmp_path / "2", policy="full", budget=0.2, acc=0.7)
    store(tmp_path / "3", policy="full", budget=0.4, acc=0.7, tokens_per_second=9.0)
    store(tmp_path / "4", policy="h2o", budget=None, budget_tokens=64, acc=0.5)
    store(
        tmp_path / "5",
        task="xsum",
        main_metric="rouge",
        metrics={"rouge": 0.1},
        kv_bytes={"resident_mean": 512},
    )
    known = {"model": "smollm2_135m", "task": "piqa", "policy": "local", "budget": 0.2}
    open_result(tmp_path / "6").fail(UserError("budget [red]2[/red] is not in (0, 1]."), known)
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "result.json").write_text("{")
    return tmp_path


def test_the_table_shows_every_cell_in_order(sweep):
    lines = [" ".join(line.split()) for line in rendered(load(sweep)).splitlines()]
    body = [line for line in lines if any(word in line for word in ("±", "/", "failed", "rouge", "0.100"))]
    text = "\n".join(body).replace("│", "|").replace(" | ", " ").strip()
    order = [
        "smollm2_135m / piqa",
        "full – 0.700 ± 0.050 3.00 MiB 1,23",
        "h2o 64 tokens 0.500 ± 0.050",
        "h2o 0.2 0.610 ± 0.050",
        "h2o 0.4 0.640 ± 0.050",
        "local 0.2 failed: budget [red]2[/red] is not in",
        "smollm2_135m / xsum",
        "h2o 0.2 0.100 0.5 KiB",
    ]
    places = [text.find(part) for part in order]
    assert -1 not in places, text
    assert places == sorted(places), text
    assert text.count("full") == 1
    assert "unreadable" in "\n".join(lines)


def test_the_table_fits_into_100_columns(sweep):
    assert max(map(len, rendered(load(sweep)).splitlines())) <= 100


def test_overrides_that_tell_cells_apart_are_shown(tmp_path):
    for seed in (0, 1):
        overrides = ["policy=h2o", f"seed={seed}", "task.limit=8", f"tracker.group={seed}"]
        store(tmp_path / str(seed), overrides=overrides)
    text = rendered(load(tmp_path))
    assert "h2o seed=0" in text
    assert "h2o seed=1" in text
    assert "task.limit" not in text
    assert "tracker" not in text


def test_runs_of_full_that_differ_are_both_shown(tmp_path):
    store(tmp_path / "0", policy="full", acc=0.7)
    store(tmp_path / "1", policy="full", acc=0.6)
    assert rendered(load(tmp_path)).count("full") == 2


def test_tables_are_stored_beside_each_other(sweep):
    import pandas as pd

    frame = load(sweep)
    first, second = write_table(frame, sweep), write_table(frame.iloc[:1], sweep)
    assert [path.name for path in (*first, *second)] == ["table.md", "table.csv", "table-2.md", "table-2.csv"]
    markdown = first[0].read_text(encoding="utf-8")
    assert "| smollm2_135m / piqa | h2o | 0.2 | acc | 0.610 ± 0.050 | 3.00 MiB |" in markdown
    assert "failed: budget [red]2[/red]" in markdown
    assert {line.count(" | ") for line in markdown.splitlines()} == {6}
    assert list(pd.read_csv(first[1])["acc"].dropna()) == list(frame["acc"].dropna())
    assert len(pd.read_csv(second[1])) == 1


# --- callback


def sweep_config(folder):
    return OmegaConf.create({"name": "s", "hydra": {"sweep": {"dir": f"{folder}/${{name}}"}}})


def test_the_summary_of_a_sweep_shows_and_stores_its_table(sweep, capsys):
    with pytest.raises(SystemExit, match="1"):  # two cells have no result
        SweepSummary().on_multirun_end(OmegaConf.create({"hydra": {"sweep": {"dir": str(sweep)}}}))
    shown = capsys.readouterr().out
    assert "0.610 ± 0.050" in shown
    assert f"8 cells, 2 without a result. Results: {sweep}" in shown
    assert (sweep / "table.md").is_file()


def test_a_sweep_without_results_says_so_and_no_more(tmp_path, caplog, capsys):
    (tmp_path / "s").mkdir()
    SweepSummary().on_multirun_end(sweep_config(tmp_path))
    assert f"No result.json in or below {tmp_path / 's'}" in caplog.text
    assert capsys.readouterr().out == ""


def test_a_cell_that_could_not_even_open_a_folder_counts_as_failed(tmp_path, caplog):
    (tmp_path / "s").mkdir()
    summary = SweepSummary()
    job = JobReturn(status=JobStatus.COMPLETED)
    job.return_value = None
    summary.on_job_end(sweep_config(tmp_path), job)
    with pytest.raises(SystemExit, match="1"):
        summary.on_multirun_end(sweep_config(tmp_path))
    assert "No result.json" in caplog.text


def test_hydra_calls_the_summary_after_a_real_sweep(tmp_path):
    (tmp_path / "config.yaml").write_text(
        "budget: 0.5\nresults_dir: out\n"
        "hydra:\n  job: {chdir: false}\n  sweep: {dir: '${results_dir}/${now:%H-%M-%S-%f}'}\n"
        "  callbacks:\n    summary: {_target_: h2o_lab.results.callback.SweepSummary}\n"
    )
    (tmp_path / "app.py").write_text(
        "from pathlib import Path\nimport hydra\nfrom hydra.core.hydra_config import HydraConfig\n"
        "from h2o_lab.results import open_result\n"
        "@hydra.main(config_path='.', config_name='config', version_base='1.3')\n"
        "def main(cfg):\n"
        "    result = {'model': 'm', 'task': 't', 'policy': 'h2o', 'budget': cfg.budget}\n"
        "    result |= {'main_metric': 'acc', 'metrics': {'acc': cfg.budget}}\n"
        "    open_result(Path(HydraConfig.get().runtime.output_dir)).finish(result)\n"
        "    return cfg.budget\n"
        "main()\n"
    )
    root = str(Path(__file__).resolve().parents[1])
    done = subprocess.run(
        [sys.executable, "app.py", "--multirun", "budget=0.25,0.75"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "0.250" in done.stdout, done.stdout + done.stderr
    assert "2 cells, 0 without a result. Results: out/" in done.stdout
    assert len(list((tmp_path / "out").glob("*/table.csv"))) == 1
