"""`python -m h2o_lab.verify`: a result's first samples come again, and what has changed is noticed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from conftest import random_model
from rich.console import Console
from test_plan import furnish, small
from test_run import surroundings

from h2o_lab import compute, log
from h2o_lab.errors import UserError
from h2o_lab.plan.cells import planned
from h2o_lab.results import open_result
from h2o_lab.verify import __main__ as command
from h2o_lab.verify.compare import Difference, compare_samples, differences, name_of_sample
from h2o_lab.verify.report import ROWS, show
from h2o_lab.verify.verification import Verification, verify

STREAM = ["task=text", "task.path={}/book.txt", "task.mode=streaming", "task.chunk=32", "task.every=50"]
WINDOWS = ["task=text", "task.path={}/book.txt"]
LM_EVAL = ["task=lm_eval", "task.name=asks", "task.num_fewshot=0", "budget=0.5"]
CELLS = {
    "questions": ["task.num_fewshot=2", "policy=h2o", "budget=0.3", "task.limit=16"],
    "all questions": ["task.num_fewshot=2", "policy=full", "task.limit=null"],
    "questions with contexts that differ": ["task=winogrande", "task.num_fewshot=1", "policy=h2o", "budget=0.4"],
    "lm-eval's log-likelihoods": [*LM_EVAL, "task.include_path={}/loglikelihood"],
    "lm-eval's rolling texts": [*LM_EVAL, "task.include_path={}/loglikelihood_rolling"],
    "lm-eval's texts": [*LM_EVAL, "task.include_path={}/generate_until"],
    "summaries that are drawn": [
        *["task=xsum", "task.num_fewshot=1", "prefill=full", "policy=h2o", "budget=0.5", "task.max_new_tokens=8"]
    ],
    "a fact at several depths": [
        *["task=needle", "task.size=60", "task.limit=4", "task.depths=[0,0.5,1]", "policy=streaming", "budget=0.5"]
    ],
    "pairs that are drawn": ["task=kv_retrieval", "data=packaged", "data.dir=null", "task.size=2", "policy=full"],
    "windows": [*WINDOWS, "task.window=80", "policy=h2o", "budget=0.2"],
    "windows that overlap": [*WINDOWS, "task.window=80", "task.stride=30", "policy=fixed", "budget=0.3"],
    "windows of a part": [*WINDOWS, "task.window=80", "task.tokens=250", "policy=h2o", "budget=0.2"],
    "a stream with a share of its tokens": [*STREAM, "policy=h2o", "budget=0.3"],
    "a stream with a pattern": [*STREAM, "policy=strided", "budget=0.3"],
    "a stream with another pattern": [*STREAM, "policy=fixed_h2", "budget=0.3"],
    "a stream with a pattern of its own": [*STREAM, "policy=strided", "budget=0.3", "policy.stride=7"],
    "a stream with a number of tokens": [*STREAM, "policy=strided", "budget_tokens=60"],
    "a stream that keeps everything": [*STREAM, "policy=full"],
    "a stream behind a prompt in full": [*STREAM, "policy=h2o", "budget=0.3", "prefill=full", "task.tokens=400"],
    "a short stream": [*STREAM, "policy=h2o", "budget=0.3", "task.tokens=120"],
}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """A furnished folder."""
    return furnish(tmp_path_factory.mktemp("verify"))


def store(words: list[str], folder: Path) -> Path:
    """Compute the one cell of these overrides into a folder, as a run does."""
    (cell,) = planned(words)
    compute.compute(cell.cfg, cell.plan, open_result(folder), words, "group", "name")
    return folder


@pytest.fixture(scope="module")
def computed(workplace):
    """The folder of a cell of `CELLS`, computed once."""

    def folder(case: str) -> Path:
        place = workplace / "results" / case.replace(" ", "_")
        return place if place.exists() else store(small(workplace, *CELLS[case]), place)

    return folder


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("case", CELLS)
def test_the_first_samples_come_again(computed, case):
    folder = computed(case)
    stored = lines(folder)
    found = verify(folder, 3, trust="include_path" in " ".join(CELLS[case]))
    assert found.samples == []
    assert found.same
    assert found.stored == len(stored)
    assert {"semantics", "fingerprint of data, model and settings"}.isdisjoint(
        difference.field for difference in found.circumstances
    )
    names = [name_of_sample(sample) for sample in stored]
    assert len(set(names)) == len(names)
    if "several depths" in case:
        assert found.compared == ["0, depth 0", "0, depth 0.5", "0, depth 1"]
    elif "pairs" in case:
        assert found.compared == [f"0, depth {depth:g}" for depth in (0, 0.25, 0.5, 0.75, 1)]
    elif "short" in case:
        assert found.compared == names == ["book, to 50", "book, to 100"]
    else:
        assert found.compared == names[:3]
        assert len(stored) > 3 or "lm-eval" in case


@pytest.mark.parametrize(
    ("key", "value"),
    [("policy", {"_target_": "pathlib.Path"}), ("policy", {"_target_": "mine.Own"}), ("trust_remote_code", True)],
)
def test_code_that_is_not_ours_does_not_run_unasked(computed, tmp_path, key, value):
    folder = shutil.copytree(computed("questions"), tmp_path / "copy")
    cfg = yaml.safe_load((folder / "config.yaml").read_text())
    (cfg if key == "policy" else cfg["model"])[key] = value
    (folder / "config.yaml").write_text(yaml.safe_dump(cfg))
    with pytest.raises(UserError, match="read them, then use --trust"):
        verify(folder, 1, start=Path(computed("questions")).parents[1])


def test_more_samples_than_there_are_is_all_of_them(computed):
    found = verify(computed("windows that overlap"), 1000)
    assert found.same
    assert len(found.compared) == found.stored


def test_nothing_is_written(workplace, tmp_path):
    words = small(workplace, *STREAM, "policy=h2o", "budget_tokens=40", "task.limit=1", "task.checkpoint_every=64")
    words = [*(word for word in words if "results_dir" not in word), f"results_dir={tmp_path}/results"]
    folder = store(words, tmp_path / "results" / "0")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert verify(folder, 2).same
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


# What has changed


@pytest.fixture
def changed(computed, tmp_path):
    """A copy of the questions' result whose samples, record or configuration were changed by a function."""

    def copy(file: str, change) -> Path:
        folder = shutil.copytree(computed("questions"), tmp_path / "copy")
        place = folder / file
        if file == "samples.jsonl":
            samples = lines(folder)
            change(samples)
            place.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
        else:
            read, write = (yaml.safe_load, yaml.safe_dump) if file == "config.yaml" else (json.loads, json.dumps)
            content = read(place.read_text())
            change(content)
            place.write_text(write(content))
        return folder

    return copy


def scaled(sample: int, by: float):
    def change(samples):
        samples[sample]["choices"][1]["logprob"] *= by

    return change


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (scaled(1, 1.001), ["choices.1.logprob"]),
        (scaled(1, 1.00001), []),
        (scaled(9, 1.5), []),
        (lambda samples: samples[0]["doc"].update(goal="another"), ["doc.goal"]),
        (lambda samples: samples[2].update(gold=1 - samples[2]["gold"]), ["gold"]),
        (lambda samples: samples[2].update(seconds=3.0), []),
        (lambda samples: samples[2].update(more=1), ["more"]),
        (lambda samples: samples[2].pop("acc"), ["acc"]),
        (lambda samples: samples[2]["choices"].pop(), ["choices"]),
        (lambda samples: samples.pop(1), [""]),
    ],
)
def test_a_change_in_the_first_samples_is_found(changed, change, fields):
    found = verify(changed("samples.jsonl", change), 3)
    assert [difference.field for difference in found.samples] == fields
    assert found.same == (not fields)


def test_a_tolerance_is_what_it_says(changed):
    folder = changed("samples.jsonl", scaled(0, 1.01))
    assert verify(folder, 1, tolerance=0.02).same
    (difference,) = verify(folder, 1, tolerance=0.001).samples
    assert difference.where == "0"
    assert difference.off == pytest.approx(0.01, rel=0.02)


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (lambda record: record["environment"]["versions"].update(torch="1.0"), ["version of torch"]),
        (lambda record: record["environment"].update(device="a GPU"), ["device"]),
        (lambda record: record.update(cell="0" * 16), ["fingerprint of data, model and settings"]),
        (lambda record: record.update(semantics=0), ["semantics", "fingerprint of data, model and settings"]),
    ],
)
def test_other_conditions_are_said_and_do_not_count(changed, change, fields):
    found = verify(changed("result.json", change), 1)
    said = [difference.field for difference in found.circumstances]
    assert [field for field in said if field not in ("commit", "uncommitted changes")] == fields
    assert found.same


def test_other_semantics_alone_leave_data_and_model_the_same(changed, monkeypatch):
    from h2o_lab.cells import identity
    from h2o_lab.verify import verification

    monkeypatch.setattr(verification, "SEMANTICS", identity.SEMANTICS + 1)
    monkeypatch.setattr(identity, "SEMANTICS", identity.SEMANTICS + 1)
    found = verify(changed("result.json", lambda record: None), 1)
    said = {difference.field: (difference.stored, difference.now) for difference in found.circumstances}
    assert said["semantics"] == (identity.SEMANTICS - 1, identity.SEMANTICS)
    assert "fingerprint of data, model and settings" not in said


def test_other_data_and_another_model_are_noticed(workplace, tmp_path):
    place = shutil.copytree(workplace, tmp_path / "place", ignore=shutil.ignore_patterns("results"))
    folder = store(small(place, "task.num_fewshot=0", "policy=h2o", "budget=0.4"), place / "results" / "0")
    file = place / "data" / "piqa" / "validation.jsonl"
    rows = file.read_text().splitlines()
    file.write_text("\n".join([*rows[:6], rows[6].replace('"sol1": "', '"sol1": "x'), *rows[7:]]))
    found = verify(folder, 3)
    assert "fingerprint of data, model and settings" in [difference.field for difference in found.circumstances]
    assert found.same, "the first samples are"
    assert not verify(folder, 8).same

    file.write_text("\n".join(rows))
    assert verify(folder, 8).same
    torch.manual_seed(1)
    other = random_model("llama")
    with torch.no_grad():
        other.lm_head.weight += 0.1 * torch.randn_like(other.lm_head.weight)
    other.save_pretrained(place / "llama")
    found = verify(folder, 3)
    assert {difference.field.rpartition(".")[2] for difference in found.samples} >= {"logprob"}


# Where a run was started


def test_relative_paths_count_from_where_the_run_was_started(workplace, tmp_path, monkeypatch):
    words = small(Path(), "task.num_fewshot=0", "policy=h2o", "budget=0.4", "results_dir=results")
    assert {"model.path=./llama", "data.dir=./data"} <= set(words)
    monkeypatch.chdir(workplace)
    folder = store(words, Path("results") / "relative")
    monkeypatch.chdir(tmp_path)
    assert verify(workplace / "results" / "relative", 2).same

    moved = shutil.copytree(workplace / folder, tmp_path / "moved")
    with pytest.raises(UserError, match=r"counts from the folder in which the run was started.*--start"):
        verify(moved, 2)
    assert verify(moved, 2, start=workplace).same
    monkeypatch.chdir(workplace)
    assert verify(moved, 2).same


# What cannot be verified


def spoil(folder: Path, how: str) -> Path:
    if how == "no result":
        (folder / "result.json").unlink()
    elif how == "a sweep":
        (folder / "0").mkdir()
        (folder / "result.json").rename(folder / "0" / "result.json")
    elif how == "a broken result":
        (folder / "result.json").write_text('{"schema"')
    elif how == "another schema":
        (folder / "result.json").write_text('{"schema": 99, "status": "finished"}')
    elif how == "no configuration":
        (folder / "config.yaml").unlink()
    elif how == "a list as configuration":
        (folder / "config.yaml").write_text("- 1\n")
    elif how == "no samples":
        (folder / "samples.jsonl").write_text("")
    else:
        (folder / "samples.jsonl").write_text("{")
    return folder


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no result", r"holds no result.json: name the folder of one result \(a run writes one\)"),
        ("a sweep", r"holds no result.json.*there are 1 below it, such as .*0\)"),
        ("a broken result", "result.json cannot be read"),
        ("another schema", "is no result of schema 1"),
        ("no configuration", "config.yaml cannot be read"),
        ("a list as configuration", "config.yaml cannot be read"),
        ("no samples", "samples.jsonl is empty"),
        ("broken samples", "samples.jsonl cannot be read"),
    ],
)
def test_a_spoilt_folder_is_one_sentence(changed, how, message):
    folder = spoil(changed("result.json", lambda record: None), how)
    with pytest.raises(UserError, match=message):
        verify(folder)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (
            "result.json",
            lambda record: record.update(status="failed", error="it broke"),
            r"a failed run \(it broke\)",
        ),
        ("config.yaml", lambda cfg: cfg.update(unknown=1), "does not fit this version of h2o_lab: .*unknown"),
        ("config.yaml", lambda cfg: cfg["task"].update(kind="riddles"), "config.yaml cannot be read"),
        (
            "config.yaml",
            lambda cfg: cfg["data"].update(dir="/nowhere/data"),
            "data.dir=/nowhere/data is not a folder",
        ),
        ("config.yaml", lambda cfg: cfg["model"].update(path="gone"), "model.path=gone counts from the folder"),
        ("config.yaml", lambda cfg: cfg["policy"].update(_target_="h2o_lab.no.Where"), "cannot be built"),
    ],
)
def test_a_result_that_cannot_be_computed_again_is_one_sentence(changed, file, change, message):
    with pytest.raises(UserError, match=message):
        verify(changed(file, change), 1)


def test_a_pattern_that_differs_by_layer_cannot_be_cut_short(workplace):
    words = small(workplace, *STREAM, "policy=strided", "policy.taper=0.5", "budget=0.3")
    folder = store(words, workplace / "results" / "tapered")
    with pytest.raises(UserError, match="unless policy.stride is set"):
        verify(folder, 2)
    assert verify(folder, 1000).same


def test_settings_out_of_range_are_one_sentence(computed):
    with pytest.raises(UserError, match="--samples=0 is out of range"):
        verify(computed("windows"), 0)
    for tolerance in (-1.0, float("nan")):
        with pytest.raises(UserError, match="--tolerance=.* is out of range"):
            verify(computed("windows"), 1, tolerance=tolerance)


# Comparing


@pytest.mark.parametrize(
    ("stored", "now", "same"),
    [
        (1.0, 1.00009, True),
        (1.0, 1.0002, False),
        (0.0, 5e-7, True),
        (0.0, 5e-6, False),
        (-250.0, -250.02, True),
        (1, 1, True),
        (100_000, 100_001, False),
        (1, 1.0, True),
        (True, 1, False),
        (None, 0, False),
        (None, None, True),
        ("a", "a ", False),
        ([1, 2], [1, 2, 3], False),
        ({"a": 1}, {"a": 1, "seconds": 9}, True),
        ({"a": {"seconds": 1}}, {"a": {"seconds": 2}}, False),
    ],
)
def test_numbers_may_be_a_little_apart_and_nothing_else(stored, now, same):
    assert (list(differences(stored, now)) == []) == same


def test_samples_are_matched_by_their_place_not_by_their_number():
    stored = [{"doc_id": i, "depth": depth, "text": f"{i}{depth}"} for depth in (0.0, 1.0) for i in range(3)]
    now = [sample for sample in stored if sample["doc_id"] == 0]
    assert compare_samples(stored, now) == []
    assert compare_samples(stored, [now[1] | {"text": "x"}]) == [Difference("0, depth 1", "text", "01.0", "x")]
    assert compare_samples(stored[:3], now)[0].stored == "absent"


# The command


def shown(found) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        show(found, console)
    return " ".join(capture.get().split())


def test_the_report_says_what_differs_and_by_how_much(changed):
    folder = changed("samples.jsonl", scaled(1, 1.25))
    found = verify(folder, 3)
    said = shown(found)
    (sample,) = [line for line in said.split("│ 1 │") if "choices.1.logprob" in line]
    assert "2.0e-01" in sample
    assert "3 of 16 samples were computed again (0 to 2), 1 of them different" in said
    assert "numbers within 0.0001 of the larger" in said


def test_long_texts_are_shown_from_where_they_differ():
    one, other = "a" * 100 + "b" * 100, "a" * 100 + "c" * 100
    found = Verification(9, ["0"], [Difference("0", "text", one, other)], [], 1e-4)
    said = shown(found)
    for letter in "bc":
        assert "…" + "a" * 12 + letter * 48 + "…" in said


def test_of_many_differences_the_first_are_shown():
    many = [Difference(str(i), "text", "a", "b") for i in range(ROWS + 5)]
    said = shown(Verification(99, [str(i) for i in range(ROWS + 5)], many, [], 1e-4))
    assert "and 5 more" in said
    assert f"│ {ROWS - 1} │ text │ a │ b │" in said
    assert f"│ {ROWS} │" not in said


@pytest.mark.parametrize(
    ("change", "code"), [(scaled(0, 1.0), 0), (scaled(0, 2.0), 1), (lambda samples: samples.clear(), 2)]
)
def test_the_exit_code_says_how_it_came_out(changed, monkeypatch, change, code):
    monkeypatch.setattr(log, "set_up", lambda: None)
    with pytest.raises(SystemExit) as end:
        command.main([str(changed("samples.jsonl", change)), "--samples", "2"])
    assert end.value.code == code


def test_a_defect_counts_as_not_verified(computed, monkeypatch, caplog):
    def broken(*args):
        raise ZeroDivisionError

    from h2o_lab.verify import verification

    monkeypatch.setattr(log, "set_up", lambda: None)
    monkeypatch.setattr(verification, "run_cell", broken)
    with pytest.raises(SystemExit) as end:
        command.main([str(computed("windows"))])
    assert end.value.code == 2
    assert "its samples cannot be computed" in caplog.text


def test_the_command_runs_from_anywhere(computed, tmp_path):
    words = [sys.executable, "-m", "h2o_lab.verify", str(computed("questions")), "--samples", "2"]
    done = subprocess.run(
        words, cwd=tmp_path, env=surroundings(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "2 of 16 samples were computed again (0 to 1), all the same" in done.stdout
    assert list(tmp_path.iterdir()) == []
