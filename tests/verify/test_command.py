"""What `python -m h2o_lab.verify` refuses, what it says and its exit code."""

import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from h2o_lab import log
from h2o_lab.errors import UserError
from h2o_lab.verify import __main__ as command
from h2o_lab.verify.compare import Difference
from h2o_lab.verify.report import ROWS, show
from h2o_lab.verify.verification import Verification, verify
from tests.support.command_line import surroundings
from tests.support.furnished import small
from tests.support.verify_cases import STREAM, changed, computed, scaled, store, workplace

__all__ = ["changed", "computed", "workplace"]  # fixtures


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
