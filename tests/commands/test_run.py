"""The command line, end to end: a sweep on a small local model and folder of questions, and what bad input says."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from h2o_lab.results import load, load_samples
from tests.support.command_line import ROOT, command, run, surroundings, workplace

__all__ = ["workplace"]  # a fixture


def test_a_sweep_records_every_cell_and_prints_one_table(workplace):
    done = run(workplace, "-m", "policy=full,h2o,local", "budget=0.2,0.6", "results_dir=sweep", "tracker=wandb")
    assert done.returncode == 0, done.stderr
    assert "6 cells, 0 without a result, 1 found finished" in done.stdout
    assert "5 of 6 cells, 0 failed, about 0:00:" in done.stderr
    for word in ("full", "h2o", "local", "0.2", "0.6", "±", "KiB"):
        assert word in done.stdout
    frame = load(workplace / "sweep")
    assert sorted(zip(frame.policy, frame.budget.fillna(0), strict=True)) == [
        ("full", 0),  # at every budget the same cell
        ("h2o", 0.2),
        ("h2o", 0.6),
        ("local", 0.2),
        ("local", 0.6),
    ]
    assert set(frame.status) == {"finished"}
    assert (frame["fewshot.from"] == "the last 6 rows of split validation (set aside, not evaluated)").all()
    for column in ("acc", "acc_stderr", "acc_norm", "acc_token_mean", "k_mean", "k_min", "k_max", "seed"):
        assert frame[column].notna().all()
    h2o = frame[frame.policy == "h2o"].set_index("budget")
    assert h2o.loc[0.2, "k_max"] < h2o.loc[0.6, "k_min"]
    samples = load_samples(workplace / "sweep")
    assert len(samples) == 5 * 5
    (first,) = (workplace / "sweep").glob("*/0")
    assert yaml.safe_load((first / "config.yaml").read_text())["policy"]["_target_"] == "h2o_lab.policies.Full"
    assert list(first.glob("wandb/offline-run-*"))
    assert list((workplace / "sweep").glob("*/table.md"))


def test_a_quiet_sweep_shows_its_table_and_nothing_else(workplace):
    done = run(workplace, "-m", "policy=h2o", "budget=0.3,0.5", "results_dir=quiet", "quiet=true")
    assert done.returncode == 0
    assert "2 cells, 0 without a result" in done.stdout
    assert done.stderr == ""


def test_a_killed_cell_goes_on_where_it_stood_and_ends_the_same(workplace):
    words = ["policy=h2o", "budget=0.5", "task.limit=18", "executor=reference", "task.batch_tokens=128"]
    process = subprocess.Popen(command(*words, "results_dir=killed"), cwd=workplace, env=surroundings(workplace))
    deadline, noted = time.monotonic() + 120, 0
    while noted < 3 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
        journals = (workplace / "killed").glob(".cells/*/journal.jsonl")
        noted = sum(file.read_bytes().count(b"\n") for file in journals)
    assert process.poll() is None, "it is not over yet"
    process.kill()
    process.wait(20)
    (journal,) = (workplace / "killed").glob(".cells/*/journal.jsonl")
    noted = journal.read_bytes().count(b"\n")
    again = run(workplace, *words, "results_dir=killed")
    undisturbed = run(workplace, *words, "results_dir=undisturbed")
    assert again.returncode == undisturbed.returncode == 0, again.stderr
    frame, whole = load(workplace / "killed"), load(workplace / "undisturbed")
    assert frame.loc[0, "resumed_batches"] == noted >= 3
    assert whole.loc[0, "resumed_batches"] == 0
    for column in ("acc", "acc_norm", "tokens.computed", "k_mean", "kv_bytes.reserved_max", "cell"):
        assert frame.loc[0, column] == whole.loc[0, column]
    one, other = (load_samples(workplace / name).drop(columns="path") for name in ("killed", "undisturbed"))
    assert one.equals(other)
    assert not list((workplace / "killed").glob(".cells/*/journal.jsonl"))

    third = run(workplace, *words, "results_dir=killed")
    assert "found finished in" in " ".join(third.stderr.split())
    assert len(load(workplace / "killed")) == 1
    forced = run(workplace, *words, "results_dir=killed", "resume=false")
    assert forced.returncode == 0
    assert len(load(workplace / "killed")) == 2


def test_a_failing_cell_is_recorded_and_the_others_go_on(workplace):
    overrides = ("policy=h2o", "budget=0.5", "model.path=opt", "task.num_fewshot=0,6", "results_dir=broken")
    done = run(workplace, "-m", *overrides)
    assert done.returncode == 1
    assert "2 cells, 1 without a result" in done.stdout
    frame = load(workplace / "broken").set_index("status")
    assert set(frame.index) == {"finished", "failed"}
    record = json.loads((Path(frame.loc["failed", "path"]) / "result.json").read_text())
    assert "use fewer task.num_fewshot" in record["error"]
    assert record["policy"] == "h2o"


def test_the_same_cell_twice_gives_the_same_records_in_two_folders(workplace):
    for _ in range(2):
        done = run(workplace, "policy=h2o", "budget=0.3", "results_dir=twice")
        assert done.returncode == 0, done.stderr
    first, second = sorted((workplace / "twice").glob("*/samples.jsonl"))
    assert first.read_bytes() == second.read_bytes()


BAD = {
    "a typo in a policy": (["policy=h20", "budget=0.2"], "Could not find 'policy/h20'.*h2o"),
    "a typo in a key": (["policy=h2o", "bugdet=0.2"], "Could not override 'bugdet'"),
    "a typo in a policy's field": (["policy.recnt_fraction=0.3", "budget=0.2"], "recnt_fraction"),
    "budget 0": (["budget=0"], r"budget=0.0 is out of range: budget must be in \(0, 1\]"),
    "budget 1.5": (["budget=1.5"], r"budget=1.5 is out of range: budget must be in \(0, 1\]"),
    "budget abc": (["budget=abc"], "Value 'abc' of type 'str' could not be converted to Float"),
    "both budgets": (["budget=0.2", "budget_tokens=20"], "budget=0.2 and budget_tokens=20 are both set"),
    "no budget": (["policy=h2o"], "no budget is set"),
    "a missing data folder": (["budget=0.2", "data.dir=nowhere"], "nowhere"),
    "a task that the packaged data lacks": (
        ["budget=0.2", "data=packaged", "task=copa", "data.dir=null"],
        "data=packaged has no copa.*data=folder",
    ),
    "a missing model folder": (["budget=0.2", "model=local", "model.path=nowhere"], "nowhere"),
    "recent larger than k": (
        ["policy.recent_fraction=null", "policy.recent_tokens=64", "budget_tokens=20"],
        "than budget_tokens=20 can hold: budget_tokens must be 64 or more",
    ),
    "sinks larger than k": (["policy=streaming", "budget_tokens=4"], "budget_tokens must be 5 or more"),
    "rolling positions with OPT": (
        ["budget=0.2", "model=local", "model.path=opt", "positions=rolling"],
        "its positions are learned",
    ),
    "a text longer than the position table": (
        ["budget=0.2", "model=local", "model.path=opt", "task.num_fewshot=5"],
        "the model's position table has 256",
    ),
    "an unknown executor": (["budget=0.2", "executor=fast"], "fast is unknown.*auto, reference, numba, triton"),
    "a task that is none": (
        ["budget=0.2", "task=lm_eval", "task.name=piqua", "data=hub", "data.dir=null"],
        "piqua",
    ),
    "a policy class that is none": (["policy._target_=no.Where", "budget=0.2"], "cannot be built.*no.Where"),
    "more examples than there are": (
        ["budget=0.2", "task.num_fewshot=20"],
        "task.num_fewshot=20 asks for more examples than there are",
    ),
    "no samples": (["budget=0.2", "task.limit=0"], "task.limit=0 is out of range"),
    "an unknown tracker": (["budget=0.2", "tracker.name=paper"], "allowed are wandb, none"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_sentence_and_no_traceback(workplace, case):
    overrides, message = BAD[case]
    done = run(workplace, *overrides, f"results_dir=bad/{case.replace(' ', '_')}".replace("'", ""))
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode in (1, 2)
    assert re.search(message, said), said
    assert "Traceback" not in said


def test_a_bad_cell_stops_a_sweep_before_the_first_cell(workplace):
    done = run(workplace, "-m", "policy=h2o", "budget=0.2,1.5", "results_dir=early")
    assert done.returncode == 2
    assert "budget=1.5 is out of range" in done.stderr
    assert "nothing was run" in done.stderr
    assert not list((workplace / "early").rglob("result.json"))


@contextmanager
def interruptible():
    """A shell that runs the tests in the background lets its children ignore SIGINT; ours must not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupted_cell_is_recorded_in_one_sentence(workplace):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "H2O_LAB_CACHE": str(workplace / "cache")}
    words = ["policy=h2o", "budget=0.5", "model=local", "model.path=llama", "data=folder", "data.dir=data"]
    words += [
        "task.num_fewshot=1",
        "tracker=none",
        "executor=reference",
        "results_dir=stopped",
        "task.batch_tokens=1",
    ]
    command = [sys.executable, "-m", "h2o_lab.run", *words]
    pipes = {"stderr": subprocess.PIPE, "text": True}
    with interruptible(), subprocess.Popen(command, cwd=workplace, env=environment, **pipes) as process:
        while process.poll() is None and not list((workplace / "stopped").rglob("config.yaml")):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 130
    assert "interrupted in policy=h2o" in said
    assert "Traceback" not in said
    frame = load(workplace / "stopped")
    assert frame.status.tolist() == ["failed"]
    assert frame.error.tolist() == ["KeyboardInterrupt"]


def test_the_readme_s_policy_runs(workplace):
    """The worked example of README.md, from its own text."""
    readme = (ROOT / "README.md").read_text().split("## Add a policy")[1].split("\n## ")[0]
    code = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    config = re.search(r"```yaml\n(.*?)```", readme, re.DOTALL)
    assert code
    assert config
    (workplace / "key_norm.py").write_text(code[1])
    (workplace / "my_conf" / "policy").mkdir(parents=True)
    (workplace / "my_conf" / "policy" / "key_norm.yaml").write_text(config[1])
    place = f"hydra.searchpath=[file://{workplace / 'my_conf'}]"
    done = run(workplace, "-m", place, "policy=key_norm,h2o", "budget=0.2", "results_dir=own")
    assert done.returncode == 0, done.stderr
    assert set(load(workplace / "own").policy) == {"key_norm", "h2o"}
    done = run(workplace, "-m", place, "policy=key_norm,h2o", "budget=0.2,1.5", "results_dir=none")
    assert done.returncode == 2
    assert "nothing was run" in done.stderr
