"""The command `python -m h2o_lab.report`: where it writes, and what it refuses."""

import sys

from h2o_lab import log
from h2o_lab.report import __main__ as command
from tests.support.report_pages import read, sweep
from tests.support.stored import store

__all__ = ["sweep"]  # a fixture


def run(monkeypatch, *arguments):
    """The code that the command ends with, and what it complains of."""
    said: list[str] = []
    monkeypatch.setattr(log, "complain", said.append)
    monkeypatch.setattr(sys, "argv", ["report", *map(str, arguments)])
    try:
        command.main()
    except SystemExit as ended:
        return ended.code, said
    return 0, said


def test_the_command_writes_beside_the_results_and_replaces_its_own_page(sweep, monkeypatch):
    assert run(monkeypatch, sweep) == (0, [])
    first = (sweep / "report.html").read_text()
    assert f"<title>{sweep.name}: KV-cache eviction</title>" in first
    assert run(monkeypatch, sweep, "--title", "Six & seven") == (0, [])
    assert "<title>Six &amp; seven</title>" in (sweep / "report.html").read_text()


def test_several_folders_make_one_page(tmp_path, monkeypatch):
    store(tmp_path / "a" / "0", policy="h2o")
    store(tmp_path / "b" / "0", policy="local")
    out = tmp_path / "new" / "page.html"
    assert run(monkeypatch, tmp_path / "a", tmp_path / "b", "--out", out) == (0, [])
    table = read(out.read_text()).tables[0]
    assert [row[0] for row in table[1:]] == ["h2o", "local"]


def test_nothing_but_a_report_is_overwritten(sweep, monkeypatch):
    result = sweep / "0" / "result.json"
    before = result.read_bytes()
    code, (said,) = run(monkeypatch, sweep, "--out", result)
    assert code == 2
    assert "is there already and no report" in said
    assert result.read_bytes() == before
    code, (said,) = run(monkeypatch, sweep, "--out", sweep / "0")
    assert code == 2
    code, (said,) = run(monkeypatch, sweep, "--out", result / "x.html")
    assert (code, "Cannot write" in said) == (2, True)


def test_a_folder_without_results_is_one_sentence(tmp_path, monkeypatch):
    code, (said,) = run(monkeypatch, tmp_path)
    assert code == 2
    assert said.startswith("No result.json in or below")
    code, (said,) = run(monkeypatch, tmp_path / "nowhere")
    assert (code, said) == (2, f"There is no file or folder {tmp_path / 'nowhere'} to read results from.")
