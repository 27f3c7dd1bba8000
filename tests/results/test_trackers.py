"""Trackers: none, and W&B offline for real; what W&B gets wrong never stops a run."""

import json
import logging
import os
import struct

import numpy as np
import pytest
import torch
import wandb

from h2o_lab.config import TrackerConfig
from h2o_lab.errors import UserError
from h2o_lab.policies import H2O
from h2o_lab.results import tracker, trackers
from h2o_lab.results.trackers import SAMPLE_ROWS
from h2o_lab.stats import TABLES, files, tables
from tests.support.recorded import recorded

RESULT = {
    "policy": "h2o",
    "budget_tokens": None,
    "metrics": {"acc": np.float32(0.5), "acc_norm": float("nan")},
    "kv_bytes": {"resident_mean": 1024},
    "overrides": ["policy=h2o"],
}
KEY = "0123456789abcdef" * 2 + "01234567"


@pytest.fixture(autouse=True)
def no_account(monkeypatch, tmp_path):
    """No key, no W&B settings of the machine, and a fresh W&B session."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT", "WANDB_ENTITY", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setattr(trackers.WandbTracker, "server_fails", False)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("W&B asked the user"))
    wandb.teardown()
    yield
    wandb.teardown()


def start(folder, mode="auto", name="wandb", **fields):
    folder.mkdir(exist_ok=True)
    cfg = TrackerConfig(name=name, mode=mode, **fields)
    config = {"policy": {"name": "h2o"}, "budget": 0.2, "task": {"kind": "harness"}}
    return tracker(cfg, config, folder, group="the-sweep", name="h2o-0.2")


def records(folder):
    """The records of the one offline run in `folder`, out of its LevelDB log of protocol buffers."""
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # waits for the service, which writes in a process of its own
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    data, place, parts, found = file.read_bytes(), 7, b"", []
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = struct.unpack("<4xHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = Record()
            record.ParseFromString(parts)
            found.append(record)
            parts = b""
    return found


def summary(folder):
    updates = (item for record in records(folder) for item in record.summary.update)
    return {item.key: json.loads(item.value_json) for item in updates if item.key}


def kept_offline(folder):
    return len(list(folder.glob("wandb/offline-run-*"))) == 1


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_none_does_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(wandb, "init", lambda **_: pytest.fail("W&B was started"))
    with start(tmp_path / "cell", name="none") as run:
        run.log(RESULT, [{"doc_id": 0}])
        run.fail(ValueError("x"))
    assert list((tmp_path / "cell").iterdir()) == []


@pytest.mark.parametrize(("field", "value"), [("name", "mlflow"), ("mode", "disabled")])
def test_what_is_unknown_is_named_with_what_is_allowed(tmp_path, field, value):
    with pytest.raises(UserError, match=rf"tracker\.{field} is '{value}'; allowed are .*(none|offline)"):
        start(tmp_path, **{"name": "none", field: value})


def test_an_offline_run_holds_config_summary_group_and_questions(tmp_path, caplog):
    samples = [{"doc_id": 0, "acc": 1.0, "options": ["a", "b"]}, {"doc_id": 1, "target": "é"}]
    with caplog.at_level(logging.INFO), start(tmp_path / "cell", tags=["mine"]) as run:
        run.log(RESULT, samples)
    begun = next(record.run for record in records(tmp_path / "cell") if record.HasField("run"))
    assert (begun.project, begun.run_group, begun.display_name) == ("h2o_lab", "the-sweep", "h2o-0.2")
    assert (begun.job_type, list(begun.tags)) == ("harness", ["mine"])
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert (config["policy"], config["budget"]) == ({"name": "h2o"}, 0.2)
    found = summary(tmp_path / "cell")
    assert (found["acc"], found["acc_norm"], found["policy"]) == (0.5, None, "h2o")
    assert found["kv_bytes.resident_mean"] == 1024
    (file,) = tmp_path.glob("cell/wandb/*/files/media/table/samples_table*.json")
    table = json.loads(file.read_text(encoding="utf-8"))
    assert table["columns"] == ["doc_id", "acc", "options", "target"]
    assert table["data"] == [[0, 1.0, '["a", "b"]', None], [1, None, None, "é"]]
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("h2o_lab")]
    assert line.startswith(f"W&B: offline run in {os.path.relpath(tmp_path / 'cell')}")
    assert "wandb sync" in line
    assert records(tmp_path / "cell")[-1].exit.exit_code == 0


def test_cells_of_one_process_are_runs_of_their_own(tmp_path):
    for number in (0, 1):
        with start(tmp_path / str(number), group="mine") as run:
            run.log({"metrics": {"acc": number}}, [])
    assert [summary(tmp_path / str(number))["acc"] for number in (0, 1)] == [0, 1]
    assert next(record.run.run_group for record in records(tmp_path / "0") if record.HasField("run")) == "mine"


def test_recorded_attention_is_shown_and_its_files_are_an_artifact(tmp_path, caplog, capfd):
    (tmp_path / "cell" / "stats").mkdir(parents=True)
    ids = torch.randint(3, 97, (2, 64), generator=torch.Generator().manual_seed(0)).tolist()
    for name, content in files(tables(recorded(ids, H2O(), 16))).items():
        (tmp_path / "cell" / "stats" / name).write_bytes(content)
    with start(tmp_path / "cell") as run:
        run.log(RESULT, [])
    assert warnings(caplog) == []
    assert "".join(capfd.readouterr()) == ""
    shown = [path.name for path in tmp_path.glob("cell/wandb/*/files/media/*/stats/*")]
    for name in ("heads_", "layers_", "times_", "kinds_", "overview_"):
        assert sum(file.startswith(name) for file in shown) == 1
    artifact = next(
        record.request.log_artifact.artifact if record.HasField("request") else record.artifact
        for record in records(tmp_path / "cell")
        if record.HasField("artifact") or record.request.HasField("log_artifact")
        if (record.artifact.type or record.request.log_artifact.artifact.type) == "attention-statistics"
    )
    assert {entry.path for entry in artifact.manifest.contents} == {f"{name}.parquet" for name in TABLES}


def test_the_table_of_questions_is_capped(tmp_path):
    with start(tmp_path / "cell") as run:
        run.log({}, [{"doc_id": number} for number in range(SAMPLE_ROWS + 5)])
    (file,) = tmp_path.glob("cell/wandb/*/files/media/table/*.json")
    assert len(json.loads(file.read_text())["data"]) == SAMPLE_ROWS


def test_an_error_marks_the_run_as_failed_and_goes_on(tmp_path):
    with pytest.raises(ValueError, match="bad shape"), start(tmp_path / "cell"):
        raise ValueError("bad shape")
    assert summary(tmp_path / "cell")["error"] == "ValueError: bad shape"
    assert [record.exit.exit_code for record in records(tmp_path / "cell") if record.HasField("exit")] == [1]


def test_nothing_of_the_machine_is_recorded(tmp_path, capfd):
    with start(tmp_path / "cell") as run:
        run.log(RESULT, [])
    names = {path.name for path in (tmp_path / "cell").rglob("*")}
    assert not names & {"requirements.txt", "wandb-metadata.json", "output.log", "diff.patch"}
    assert "".join(capfd.readouterr()) == ""


def test_a_failing_init_is_one_warning_and_the_run_goes_on(tmp_path, monkeypatch, caplog):
    def broken(**_):
        raise wandb.errors.CommError("no service")

    monkeypatch.setattr(wandb, "init", broken)
    with start(tmp_path / "cell", mode="offline") as run:
        run.log(RESULT, [{"doc_id": 0}])
    (line,) = warnings(caplog)
    assert line.startswith("W&B could not start an offline run (CommError: no service)")


def test_failing_calls_are_warnings_each_and_the_run_is_still_ended(tmp_path, monkeypatch, caplog):
    class Broken:
        dir, url, ended = str(tmp_path), "", None

        @property
        def summary(self):
            raise OSError("disk full")

        def log(self, values):
            raise RuntimeError("gone")

        def finish(self, exit_code):
            Broken.ended = exit_code
            raise TimeoutError("slow")

    monkeypatch.setattr(wandb, "init", lambda **_: Broken())
    run = start(tmp_path / "cell", mode="offline")
    run.log(RESULT, [{"doc_id": 0}])
    run.fail(ValueError("x"))
    run.close()
    assert Broken.ended == 1
    parts = ("disk full", "gone", "disk full", "slow")
    assert all(part in line for part, line in zip(parts, warnings(caplog), strict=True))


def test_online_without_a_key_is_kept_offline_and_asks_nobody(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with start(tmp_path / "cell", mode="online") as run:
        run.log(RESULT, [])
    assert kept_offline(tmp_path / "cell")
    assert warnings(caplog) == ["W&B: tracker.mode is online but no key is configured, so the run is kept offline."]


@pytest.mark.parametrize("source", ["environment", "netrc"])
def test_a_configured_key_means_online(tmp_path, monkeypatch, source):
    if source == "environment":
        monkeypatch.setenv("WANDB_API_KEY", KEY)
    else:
        host = wandb.Settings().base_url.removeprefix("https://")
        (tmp_path / "netrc").write_text(f"machine {host}\n  login user\n  password {KEY}\n")
    assert trackers._goes_online("auto")
    assert trackers._goes_online("online")
    assert not trackers._goes_online("offline")


def test_auto_respects_wandb_mode(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert not trackers._goes_online("auto")
    assert trackers._goes_online("online")


def test_a_malformed_key_is_one_warning_and_the_run_is_kept_offline(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("WANDB_API_KEY", "too short")
    with start(tmp_path / "cell") as run:
        run.log(RESULT, [])
    assert kept_offline(tmp_path / "cell")
    (line,) = warnings(caplog)
    assert line.startswith("W&B could not find out whether to go online")


def test_a_server_out_of_reach_is_one_warning_and_the_run_is_kept_offline(tmp_path, monkeypatch, caplog, capfd):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(trackers, "INIT_TIMEOUT", 2)
    with start(tmp_path / "cell") as run:
        run.log(RESULT, [])
    start(tmp_path / "next").close()
    assert summary(tmp_path / "cell")["acc"] == 0.5
    assert kept_offline(tmp_path / "next")
    assert list((tmp_path / "next").glob("wandb/run-*")) == []  # not tried again
    (line,) = warnings(caplog)
    assert line.startswith("W&B could not start an online run, so this sweep is kept offline (CommError")
    assert "".join(capfd.readouterr()) == ""
    files = [path for path in (tmp_path / "cell").rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
