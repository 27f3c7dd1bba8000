"""docs/policies.md is what the classes say, and says what they are."""

import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from h2o_lab.checks import build_policy
from h2o_lab.config import config_dir, register
from h2o_lab.policies import (
    ALL,
    H2O,
    Full,
    GlobalH2,
    H2ORealDrop,
    Local,
    Policy,
    SnapKV,
    SpAtten,
    Streaming,
    TopKH2,
)

ROOT = Path(__file__).resolve().parents[2]
ENTRY = {
    "k": 102,
    "budget": 0.2,
    "windows": 4,
    "length": 512,
    "seed": 0,
    "data": {"source": "folder", "origin": "news.jsonl"},
    "versions": {"torch": "9.9"},
    "rows": {"h2o": {"perplexity": 21.5, "seen": 102.0, "overlap": 1.0, "older": 1.0, "layer_0": 1.0}},
}


@pytest.fixture
def pages(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from experiments import policies_page

    return policies_page


def row_of(pages, kind: type[Policy]) -> dict[str, str]:
    """The line of the overview, by the head of its column."""
    lines = [line.strip("| \n").split(" | ") for line in pages.page([kind], {}).splitlines() if line[:1] == "|"]
    head, _, cells = lines
    return dict(zip(head, cells, strict=True))


def test_the_committed_page_is_the_generated_one(pages):
    measured = json.loads(pages.MEASURED.read_text(encoding="utf-8"))
    committed = pages.PAGE.read_text(encoding="utf-8")
    assert committed == pages.page(ALL, measured), "run python -m experiments.policies_page"
    for kind in ALL:
        assert committed.count(f"\n### {kind.name}\n") == committed.count(f"(#{kind.name})") == 1
        assert f"policy={kind.name}" in committed


def test_main_writes_the_page(pages, monkeypatch, tmp_path):
    monkeypatch.setattr(pages, "PAGE", tmp_path / "policies.md")
    monkeypatch.setattr("h2o_lab.log.set_up", lambda: None)
    pages.main([])
    assert (tmp_path / "policies.md").read_text(encoding="utf-8").startswith("# Policies\n")


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_each_command_composes_to_the_policy_that_is_shown(pages, kind):
    words = pages.command(kind()).split()
    assert words[:3] == ["python", "-m", "h2o_lab.run"]
    register()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("config", overrides=words[3:])
    assert build_policy(cfg.policy) == kind()
    assert (cfg.prefill == "full") == kind.compresses_prompt
    assert (cfg.budget is None) == (not kind.budgeted)


def test_cells_follow_the_classes(pages):
    expected = {
        Full: {"entries per head": "T", "time": "O(T² D)", "saves memory": "no", "priority": "–"},
        Local: {"recent": "k", "priority": "position", "entries per head": "k", "causal": "yes"},
        Streaming: {"recent": "the rest", "sinks": "4"},
        H2O: {"recent": "0.5 k", "priority": "accumulated", "scope": "head", "time": "O(T k D)"},
        H2ORealDrop: {"recent": "0.5 k + 1", "entries per head": "k + 1"},
        SpAtten: {"scope": "model", "time": "O(T k D), one token at a time"},
        SnapKV: {"recent": "32", "time": "O(T² D) in the prompt, then O(T k D)"},
        TopKH2: {"entries per head": "T, and 0.5 k beside", "priority": "mask; `h2o` beside", "scope": "–"},
        GlobalH2: {"causal": "no", "time": "two passes: O(T² D), then O(T k D)"},
    }
    for kind, cells in expected.items():
        row = row_of(pages, kind)
        assert {column: row[column] for column in cells} == cells


@pytest.mark.parametrize(
    ("attribute", "value", "column", "cell"),
    [
        ("evicts", False, "saves memory", "no"),
        ("evicts", False, "time", "O(T² D)"),
        ("causal", False, "causal", "no"),
        ("compresses_prompt", True, "saves memory", "yes, once the prompt is read"),
        ("two_passes", True, "time", "two passes: O(T² D), then O(T k D)"),
        ("by_step", True, "time", "O(T k D), one token at a time"),
        ("slots", lambda self, k: k + 3, "entries per head", "k + 3"),
    ],
)
def test_a_changed_class_changes_its_row(pages, monkeypatch, attribute, value, column, cell):
    assert row_of(pages, H2O)[column] != cell
    monkeypatch.setattr(H2O, attribute, value)
    assert row_of(pages, H2O)[column] == cell


def test_a_changed_class_changes_its_section(pages, monkeypatch):
    monkeypatch.setattr(H2O, "__doc__", "Keeps what it likes.\n\nAnd more\nof it.\n")
    monkeypatch.setattr(H2O, "source", "hearsay")
    monkeypatch.setattr(H2O, "neighbours", "Nobody lives near.")
    monkeypatch.setattr(H2O, "compresses_prompt", True)
    section = pages.page([H2O], {}).partition("\n### h2o\n")[2]
    assert section.startswith("\nKeeps what it likes.\n\nAnd more\nof it.\n\n- Source: hearsay.\n")
    assert "- Neighbours: Nobody lives near.\n" in section
    assert "- Command: `python -m h2o_lab.run policy=h2o budget=0.2 prefill=full`.\n" in section
    streams = pages.page([Streaming], {}).partition("\n### streaming\n")[2]
    assert "add `positions=rolling`" in streams
    assert "add `positions=rolling`" not in section


def test_the_measured_table_is_the_file(pages):
    text = pages.page([H2O], {"tiny": ENTRY})
    assert "**tiny**: 4 windows of 512 tokens (folder, news.jsonl), budget=0.2, k=102, seed 0; torch 9.9." in text
    assert "| `h2o` | 21.50 | 102.0 | 1.000 | 1.000 | 1.000 |\n" in text
