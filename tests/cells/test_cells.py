"""Cells that are computed once: journals, claims, what makes two cells the same."""

import copy
import errno
import json
import multiprocessing
import os
import sys

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from h2o_lab.cells import Cell, Journal, fingerprint, fingerprint_files
from h2o_lab.cells.identity import _source, identity, name_of
from h2o_lab.checks import Plan, build_policy
from h2o_lab.config import config_dir, register
from h2o_lab.errors import UserError
from h2o_lab.policies import Budget
from h2o_lab.results import load, load_samples, open_result

# Journals


def test_a_journal_remembers_across_processes(tmp_path):
    file = tmp_path / "deep" / "journal.jsonl"
    values = {"a": [1, 0.1 + 0.2], "b": {"text": "ü\n\ud800"}}
    for key, value in values.items():
        Journal(file).note(key, value)
    again = Journal(file)
    assert len(again) == 2
    assert again.recall("a") == [1, 0.30000000000000004]
    assert again.recall("b") == values["b"]
    assert again.recall("c") is None


@pytest.mark.parametrize(
    "end", [b'["c", 1', b'["c", 1]\n["d"', b'["c", 1]\ngarbage\n["e", 2]\n', b"\x00\x00\n", b""]
)
def test_a_line_cut_short_is_forgotten_and_the_next_starts_anew(tmp_path, end):
    file = tmp_path / "journal.jsonl"
    Journal(file).note("a", 1)
    with file.open("ab") as stream:
        stream.write(end)
    Journal(file).note("z", 26)
    again = Journal(file)
    assert (again.recall("a"), again.recall("z")) == (1, 26)
    assert (again.recall("c") == 1) == end.startswith(b'["c", 1]\n')
    assert file.read_bytes().endswith(b'["z", 26]\n')


def test_without_a_file_nothing_is_remembered(tmp_path):
    journal = Journal()
    journal.note("a", 1)
    assert journal.recall("a") is None
    assert journal.beside("x") is None
    assert Journal(tmp_path / "j").beside("x") == tmp_path / "x"


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="Cannot write .*journal: No space left on device; make room"):
        Journal(tmp_path / "journal").note("a", 1)


# Fingerprints


def test_fingerprints_follow_content():
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"a": 1, "b": 2})
    assert fingerprint("ab", "c") != fingerprint("a", "bc")
    assert fingerprint(1) != fingerprint("1")


def test_fingerprints_of_files_follow_names_sizes_and_both_ends(tmp_path):
    def of(content: bytes, name="weights"):
        (tmp_path / name).write_bytes(content)
        return fingerprint_files([tmp_path / name])

    large = bytes(5 * 2**20)
    seen = {of(large), of(b"x" + large[1:]), of(large[1:] + b"x"), of(large[1:]), of(large, "other")}
    assert len(seen) == 5
    assert of(large) in seen


# Identity


@pytest.fixture
def named():
    """The name of the cell that these overrides describe."""

    register()

    def name(*overrides, data="rows", model="weights"):
        with initialize_config_dir(str(config_dir()), version_base="1.3"):
            cfg = compose("config", list(overrides))
        policy = build_policy(cfg.policy)
        budget = Budget(cfg.budget, cfg.budget_tokens, cfg.budget_base) if policy.budgeted else None
        return name_of(identity(cfg, Plan(policy, budget), data, model))

    return name


def test_what_changes_no_result_changes_no_name(named):
    cell = named("budget=0.2")
    assert cell == named("budget=0.2", "results_dir=elsewhere", "tracker=none", "resume=false")
    assert cell == named("budget=0.2", "model.device=cpu", "data=folder", "data.dir=x", "model.name=other")
    assert cell == named("budget=0.2", "policy.recent_fraction=0.5"), "the default, said aloud"
    assert cell == named("budget=0.2", "task.fewshot=sampled")
    assert named("policy=full", "budget=0.2") == named("policy=full", "budget=0.6") == named("policy=full")


def test_statistics_have_a_version_of_their_own(named, monkeypatch):
    before = named("budget=0.2"), named("budget=0.2", "stats=attention")
    monkeypatch.setattr("h2o_lab.cells.identity.STATISTICS", 0)
    after = named("budget=0.2"), named("budget=0.2", "stats=attention")
    assert (before[0] == after[0], before[1] == after[1]) == (True, False)


def test_what_was_stored_before_a_key_was_there_stays_known():
    register()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("config", ["budget=0.2", "task.fewshot=sampled"])
    new = identity(cfg, Plan(build_policy(cfg.policy), Budget(0.2)), "rows", "weights")
    OmegaConf.set_struct(cfg, False)
    del cfg.task.fewshot
    assert identity(cfg, Plan(build_policy(cfg.policy), Budget(0.2)), "rows", "weights") == new


def test_what_changes_a_result_changes_the_name(named):
    changes = [
        *[
            "budget=0.4",
            "budget_base=sequence",
            "prefill=full",
            "positions=rolling",
            "executor=reference",
            "seed=1",
        ],
        *["policy=local", "policy.recent_fraction=0.4", "policy.scope=layer", "task=openbookqa", "task.limit=7"],
        *[
            "task.num_fewshot=0",
            "task.fewshot=fixed",
            "task.fewshot_seed=1",
            "model.dtype=bfloat16",
            "model.trust_remote_code=true",
        ],
        "model.device_map=auto",
    ]
    names = [named("budget=0.2"), named("budget=0.2", data="x"), named("budget=0.2", model="x")]
    names += [named("budget_tokens=20")] + [
        named("budget=0.2", change) for change in changes if "budget=" not in change
    ]
    names.append(named("budget=0.4"))
    assert len(set(names)) == len(names)


NO_DIFFERENCE = {
    *("model.name", "model.source", "model.id", "model.revision", "model.path", "model.max_memory"),
    *("data.source", "data.dir", "task.path", "task.checkpoint_every", "task.include_path"),
    *("tracker.name", "tracker.project", "tracker.entity", "tracker.mode", "tracker.group", "tracker.tags"),
    *("results_dir", "resume", "quiet", "within"),
}
"""Keys that say where something is or goes: what lies there is in the fingerprints of data and model."""
OTHER = {
    **{"model.device": "mps", "model.device_map": "auto", "model.dtype": "bfloat16", "stats.name": "attention"},
    **{"policy": {"_target_": "h2o_lab.policies.Local"}, "task.stop": ["!"], "task.depths": [0.5]},
    **{"budget_base": "sequence", "tracker.tags": ["mine"], "model.max_memory": {"cpu": "1GiB"}},
}
"""Another value, where one more or not the same would not do."""
WHOLE = {
    "budget_tokens",
    "task.limit",
    "task.tokens",
    "task.stride",
    "task.context",
    "task.document_words",
    "within",
}
"""Numbers that may be absent."""


@pytest.mark.parametrize("task", ["piqa", "xsum", "pg19", "needle"])
def test_every_key_is_either_part_of_a_cell_or_known_not_to_be(task, monkeypatch):
    where = ("device", "device_map", "tp_plan")
    monkeypatch.setattr(
        "h2o_lab.cells.identity.placement", lambda model: str([getattr(model, key) for key in where])
    )
    register()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("config", ["budget=0.2", "stats=attention", f"task={task}"])
    OmegaConf.set_struct(cfg, False)
    names = [*_keys(cfg), "policy"]
    assert len(names) > 40

    def name(changed):
        policy = build_policy(changed.policy)
        budget = Budget(changed.budget, changed.budget_tokens, changed.budget_base)
        return name_of(identity(changed, Plan(policy, budget), "rows", "weights"))

    for key in names:
        changed = copy.deepcopy(cfg)
        value = OmegaConf.select(cfg, key)
        OmegaConf.update(changed, key, OTHER.get(key, _another(key, value)), merge=False)
        if key == "budget_tokens":
            changed.budget = None
        if key == "stats.name":
            changed.stats.name = "none"
        assert (name(changed) == name(cfg)) == (key in NO_DIFFERENCE), key


def _keys(cfg, prefix=""):
    for key in cfg:
        value = None if OmegaConf.is_missing(cfg, key) else cfg[key]
        if prefix + key == "policy":
            continue
        if OmegaConf.is_dict(value):
            yield from _keys(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def _another(key, value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value / 2
    if isinstance(value, str):
        return value + "x"
    return 7 if key in WHOLE else "other"


def test_a_policy_of_somebody_else_is_known_by_its_source(named, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    names = []
    for number, share in enumerate(("0.5", "0.25")):
        (tmp_path / f"mine{number}.py").write_text(
            "from dataclasses import dataclass\nfrom typing import ClassVar\n"
            "from h2o_lab.policies import Policy\n\n\n"
            "@dataclass(frozen=True, kw_only=True)\nclass Mine(Policy):\n    name: ClassVar[str] = 'mine'\n\n"
            f"    def slots(self, k):\n        return int(k * {share})\n"
        )
        module = __import__(f"mine{number}")
        monkeypatch.setattr(module.Mine, "__module__", "mine0")
        monkeypatch.setitem(sys.modules, "mine0", module)
        _source.cache_clear()  # as in another process
        names.append(named("policy={_target_:mine0.Mine}", "budget=0.2"))
    assert names[0] != names[1]


# Claims


def finished(root, cell, number="0", **more):
    """A finished record of the cell, as a run leaves it."""
    result = open_result(root / number)
    journal = cell.begin(result)
    journal.note("half", 1)
    result.write_samples([{"doc_id": 0}])
    result.finish({"cell": cell.name, "policy": "h2o", "metrics": {"acc": 1.0}, "main_metric": "acc"} | more)
    cell.conclude()
    return result.path


def test_a_finished_cell_is_taken_over_whole(tmp_path):
    cell = Cell(tmp_path, "abc")
    with cell.claimed():
        assert cell.finished() is None
        path = finished(tmp_path, cell)
        assert cell.finished() == path
        copy = open_result(tmp_path / "later" / "3")
        record = cell.reuse(path, copy, {"overrides": ["policy=h2o"]})
    assert (record["reused_from"], record["overrides"]) == ("0", ["policy=h2o"])
    assert load(tmp_path / "later").loc[0, "acc"] == 1.0
    assert load_samples(tmp_path / "later")["doc_id"].tolist() == [0]
    assert load(tmp_path)["path"].tolist() == [str(path)], "a copy is left out beside its original"
    assert len(load_samples(tmp_path)) == 1


def test_a_killed_cell_goes_on_and_a_finished_one_is_forgotten(tmp_path):
    cell = Cell(tmp_path, "abc")
    with cell.claimed():
        cell.begin(open_result(tmp_path / "0")).note("half", 1)
        assert cell.finished() is None
        again = cell.begin(open_result(tmp_path / "1"))
        assert again.recall("half") == 1
        finished(tmp_path, cell, "2")
        assert cell.begin(open_result(tmp_path / "3")).recall("half") is None


@pytest.mark.parametrize("damage", ["delete", "cut", "failed", "another cell"])
def test_only_a_whole_finished_record_of_this_cell_counts(tmp_path, damage):
    cell = Cell(tmp_path, "abc")
    with cell.claimed():
        file = finished(tmp_path, cell) / "result.json"
        record = json.loads(file.read_text())
        if damage == "delete":
            file.unlink()
        elif damage == "cut":
            file.write_text(file.read_text()[:40])
        else:
            record |= {"status": "failed"} if damage == "failed" else {"cell": "xyz"}
            file.write_text(json.dumps(record))
        assert cell.finished() is None


def test_anew_forgets_what_was_half_done(tmp_path):
    cell = Cell(tmp_path, "abc")
    with cell.claimed():
        journal = cell.begin(open_result(tmp_path / "0"))
        journal.note("half", 1)
        journal.beside("stream.safetensors").write_bytes(b"x")
        assert len(cell.begin(open_result(tmp_path / "1"), anew=True)) == 0
        assert not (cell.place / "stream.safetensors").exists()


def _hold(root, held, release):
    with Cell(root, "abc").claimed():
        held.set()
        release.wait(20)


def test_a_second_process_waits_for_the_first(tmp_path, caplog):
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path, held, release))
    other.start()
    try:
        assert held.wait(60)
        caplog.set_level("INFO", logger="h2o_lab")
        context.Process(target=_later, args=(release,)).start()
        with Cell(tmp_path, "abc").claimed():
            assert release.is_set(), "not before the other let go"
        assert "another process works on it" in caplog.text
    finally:
        release.set()
        other.join(20)


def _later(release):
    import time

    time.sleep(0.5)
    release.set()
