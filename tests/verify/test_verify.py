"""`python -m h2o_lab.verify`: a result's first samples come again, and what has changed is noticed."""

import shutil
from pathlib import Path

import pytest
import torch
import yaml

from h2o_lab.errors import UserError
from h2o_lab.verify.compare import Difference, compare_samples, differences, name_of_sample
from h2o_lab.verify.verification import verify
from tests.support.furnished import small
from tests.support.models import random_model
from tests.support.verify_cases import CELLS, STREAM, changed, computed, lines, scaled, store, workplace

__all__ = ["changed", "computed", "workplace"]  # fixtures


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
