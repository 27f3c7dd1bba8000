"""`python -m h2o_lab.report`: what the page says of stored results, and that it is whole and harmless."""

import json
import re
import shutil
from itertools import product

import pytest

from h2o_lab.errors import UserError
from h2o_lab.report import __main__ as command
from h2o_lab.report import page as page_module
from h2o_lab.report.charts import INK
from h2o_lab.report.page import page
from h2o_lab.results import open_result
from tests.support.report_pages import cell, read, sweep

__all__ = ["sweep"]  # a fixture

EVIL = "<script>alert('x')</script>"


def written(*folders, out=None, title=None):
    return read(page(folders, out or folders[0] / "report.html", title))


def test_the_table_has_score_interval_difference_memory_and_speed(sweep):
    found = written(sweep)
    (table,) = found.tables
    by_name = {(row[0], row[1]): dict(zip(table[0], row, strict=True)) for row in table[1:]}
    assert [row[0] for row in table[1:]] == ["full", "h2o", "h2o", "local"]
    full, worse, same = by_name["full", "–"], by_name["h2o", "0.2"], by_name["h2o", "0.5"]
    assert full["acc"] == "0.750 ± 0.164"
    assert full["95 % interval"] == "0.409 to 0.929", "Wilson's for 6 of 8"
    assert worse["minus full"] == "−0.250"
    assert worse["its 95 % interval"] == "−0.571 to +0.071", "of the eight differences"
    assert (same["minus full"], same["its 95 % interval"]) == ("0.000", "no sample differs")
    assert (worse["KV cache"], worse["of full"], full["KV cache"]) == ("204.8 KiB", "20%", "1.00 MiB")
    assert worse["tokens/s"] == "100"
    assert by_name["local", "0.2"]["acc"] == "failed"


def test_the_head_counts_cells_and_failures_say_their_reason(sweep):
    text = written(sweep).text
    assert "5 cells, 1 failed, 1 unreadable" in " ".join(text.replace(" ,", ",").split())
    assert "m / piqa / local, budget 0.2 failed" in text
    assert "ValueError: no weights" in text
    assert "Traceback (most recent call last)" in text
    assert "result.json cannot be read: Expecting property name" in text
    assert "Traceback" not in text.partition("result.json cannot be read")[2].partition("piqa")[0]


def test_the_head_says_what_was_varied_and_where_it_ran(tmp_path):
    git = {"commit": "0123456789abcdef", "dirty": True}
    machine = {"git": git, "versions": {"torch": "2.9"}, "device": "cpu", "cpu": {"model": "X", "cores": 4}}
    for number, budget in enumerate((0.2, 0.5)):
        overrides = ["policy=h2o", f"budget={budget}", f"results_dir={number}"]
        cell(tmp_path / str(number), [0, 1], budget=budget, overrides=overrides, environment=machine)
    text = written(tmp_path).text
    assert "commit 0123456789ab with changes" in text
    assert "versions torch 2.9" in text
    assert "device cpu: X, 4 cores" in text
    assert "varied budget=0.2,0.5 the same in all policy=h2o" in text


def test_only_a_full_cache_of_the_same_setting_is_compared_with(tmp_path):
    cell(tmp_path / "0", [1, 1, 0, 1], policy="full", budget=None)
    cell(tmp_path / "1", [1, 1, 0, 0], config={"task": {"name": "piqa", "limit": 4}})
    cell(tmp_path / "2", [1, 1, 0, 0])
    rows = written(tmp_path).tables[0]
    place = rows[0].index("minus full")
    assert [row[place] for row in rows[1:]] == ["–", "–", "−0.250"]


@pytest.mark.parametrize(("fewshot", "compared"), [("sampled", "−0.250"), ("fixed", "–")])
def test_a_field_that_came_later_does_not_part_what_is_alike(tmp_path, fewshot, compared):
    cell(tmp_path / "0", [1, 1, 0, 1], policy="full", budget=None)
    cell(tmp_path / "1", [1, 1, 0, 0], config={"task": {"name": "piqa", "limit": 8, "fewshot": fewshot}})
    rows = written(tmp_path).tables[0]
    assert rows[2][rows[0].index("minus full")] == compared


def test_the_difference_is_not_paired_where_samples_are_others(tmp_path):
    cell(tmp_path / "0", [1, 1, 0, 1], policy="full", budget=None)
    others = [{"doc_id": i + 1, "acc": value} for i, value in enumerate([1, 1, 0, 0])]
    cell(tmp_path / "1", [1, 1, 0, 0], lines=others)
    row = written(tmp_path).tables[0][2]
    assert row[5:7] == ["−0.250", "–"]


def test_everything_from_results_is_escaped(tmp_path):
    cell(
        tmp_path / "0",
        [0, 1],
        model=EVIL,
        task=EVIL,
        policy=EVIL,
        main_metric=EVIL,
        metrics={EVIL: 0.5, f"{EVIL}_stderr": 0.1},
        overrides=[f"x={EVIL}"],
        environment={EVIL: EVIL, "git": {"commit": EVIL}, "versions": {EVIL: EVIL}, "device": EVIL},
        lines=[{"doc_id": EVIL, "text": EVIL, "reference": EVIL, EVIL: EVIL}],
        config={EVIL: EVIL},
        reused_from=EVIL,
        cell="abc",
    )
    cell(tmp_path / "1", [0, 1], model=EVIL, task=EVIL, main_metric=EVIL, metrics={EVIL: 0.4}, policy="$a$ \\frac")
    open_result(tmp_path / "2").fail(UserError(EVIL), {"model": EVIL, "task": EVIL, "policy": EVIL})
    (tmp_path / "0" / "stats").mkdir()
    (tmp_path / "0" / "stats" / "<b> %23.png").write_bytes(b"")
    found = read(html := page([tmp_path], tmp_path / "r.html", EVIL))
    assert found.scripts == 1, "the page's own"
    assert EVIL not in html
    assert found.text.count(EVIL) > 15
    assert "0/stats/%3Cb%3E%20%2523.png" in found.links


def test_the_page_is_whole_in_itself(sweep):
    html = page([sweep], sweep / "report.html", None)
    found = read(html)
    assert found.links
    assert all(link.startswith("#") for link in found.links)
    assert not re.search(r"url\((?!#)|@import|https?:", html)
    assert html.count("<svg") == 2
    assert INK not in html
    assert ">budget, share of the tokens<" in html, "text is text"
    assert "#D55E00" in html


def test_statistics_are_linked_relative_to_the_page(sweep):
    (sweep / "1" / "stats" / "heads").mkdir(parents=True)
    for name in ("mass.parquet", "heads/map.png", "notes.txt"):
        (sweep / "1" / "stats" / name).write_bytes(b"")
    links = written(sweep, out=sweep / "pages" / "r.html").links
    assert {"../1/stats/mass.parquet", "../1/stats/heads/map.png"} <= set(links)
    assert not any("notes" in link for link in links)


def test_copies_are_named_once_and_not_counted(tmp_path):
    cell(tmp_path / "0", [0, 1], cell="abc")
    cell(tmp_path / "1", [0, 1], cell="abc", reused_from=str(tmp_path / "0"))
    found = written(tmp_path)
    assert len(found.tables[0]) == 2
    assert "1 cell, none failed" in found.text.replace(" ,", ",")
    assert found.text.count(f"{tmp_path / '1'} of {tmp_path / '0'}") == 1
    alone = written(tmp_path / "1")
    assert f"copied from {tmp_path / '0'}" in alone.text


def test_texts_stand_side_by_side_with_the_reference(tmp_path):
    for number, policy in enumerate(("full", "h2o", "local")):
        lines = [{"doc_id": i, "reference": f"true {i}", "text": f"{policy} says {i}", "acc": 1} for i in range(9)]
        cell(tmp_path / str(number), [1] * 9, policy=policy, lines=lines)
    text = written(tmp_path).text
    start = text.index("side by side")
    expected = (
        "doc_id 0 reference true 0 full full says 0 h2o, budget 0.2 h2o says 0 local, budget 0.2 local says 0"
    )
    assert expected in text[start:]
    assert "reference true 3" not in text


def test_samples_are_cut_and_the_page_says_so(tmp_path, monkeypatch):
    lines = [{"doc_id": i, "acc": 1, "long": f"start {'x' * 5000}"} for i in range(7)]
    cell(tmp_path / "0", [1] * 7, lines=lines)
    found = written(tmp_path)
    assert "samples: 3 of 7" in found.text
    assert "(5,006 characters in all)" in found.text
    assert "the first 3 samples are shown" in found.text
    monkeypatch.setattr(page_module, "CHARACTERS", 1500)
    assert "samples: 1 of 7" in written(tmp_path).text
    monkeypatch.setattr(page_module, "CHARACTERS", 0)
    assert "no samples are shown" in written(tmp_path).text
    monkeypatch.setattr(page_module, "FOLDED", 0)
    monkeypatch.setattr(page_module, "CHARTS", 0)
    text = written(tmp_path).text
    assert "Charts are drawn for the first 0 of 1 tasks" in text
    assert "The first 0 of 1 cells have a section" in text


def test_many_cells_make_a_page_of_a_few_megabytes(tmp_path):
    long = {"doc": {"question": "why? " * 400}, "choices": [{"text": "because " * 100, "logprob": -1.0}] * 5}
    cell(tmp_path / "first", [0, 1, 0, 1], lines=[{"doc_id": i, "acc": i % 2} | long for i in range(4)])
    known = json.loads((tmp_path / "first" / "result.json").read_text())
    for number, budget in product(range(100), (0.1, 0.2, 0.4, 0.6, 0.8)):
        shutil.copytree(tmp_path / "first", folder := tmp_path / f"{number}_{budget}")
        varied = {"policy": f"policy_{number}", "budget": budget, "task": f"task {number % 5}"}
        (folder / "result.json").write_text(json.dumps(known | varied))
    html = page([tmp_path], tmp_path / "r.html", None)
    assert len(html.encode()) < 10e6
    assert sum(len(table) - 1 for table in read(html).tables) == 501


@pytest.mark.parametrize(
    "record",
    [
        {"schema": 1, "status": "finished"},
        {"schema": 1, "status": 7},
        {"schema": 1, "status": ["finished"]},
        {"schema": 1, "status": "failed", "error": 3, "traceback": ["x"]},
        {"schema": 1, "status": "finished", "metrics": [1], "main_metric": "acc", "k": 3, "overrides": "x"},
        {"schema": 1, "status": "finished", "metrics": {"acc": "high"}, "main_metric": ["acc"], "cell": [1]},
        {"schema": 1, "status": "finished", "metrics": {"acc": 10**400}, "main_metric": "acc", "budget": {}},
        {"schema": 1, "status": "finished", "model": 4, "task": None, "policy": {"a": 1}, "started": "yesterday"},
        {"schema": 1, "status": "finished", "environment": {"git": "x", "versions": 3, "cpu": []}, "data": 3},
        {"schema": 1, "status": "finished", "kv_bytes": {"resident_mean": -1}, "samples": "many", "finished": 3},
        {"schema": 1, "status": "finished", "main_metric": "acc", "metrics": {"acc": 0.5, "acc_stderr": -2}},
    ],
)
def test_odd_records_are_shown_as_far_as_they_go(sweep, record):
    (sweep / "9").mkdir()
    (sweep / "9" / "result.json").write_text(json.dumps(record))
    (sweep / "9" / "samples.jsonl").write_text('{"doc_id": [1], "text": 4}\n{\n[]\n7\n{"text": null}\n')
    (sweep / "9" / "config.yaml").write_bytes(b"task: [\xff\n")
    assert "6 cells" in written(sweep).text


def test_letters_that_no_font_has_do_no_harm(tmp_path):
    odd = "a\ud800\x00\x1b\u2028</pre>\n"
    for number in range(2):
        folder = tmp_path / str(number)
        cell(folder, [0, 1], task=odd, policy=odd, main_metric=odd, metrics={odd: 0.5 + number})
        line = json.dumps({"doc_id": odd, "text": odd, odd: [odd, {odd: float("inf")}]})
        (folder / "samples.jsonl").write_text(line + "\n")
    command.main([str(tmp_path)])
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert html.count("<svg") == 2
    assert read(html).text.count("a\\ud800") > 5


def test_a_cell_with_another_metric_says_which(tmp_path):
    cell(tmp_path / "0", [0, 1])
    cell(tmp_path / "1", [0, 1], policy="local", main_metric="f1", metrics={"f1": 12345678.9})
    first, second = written(tmp_path).tables[0][1:]
    assert first[3] == "0.500 ± 0.500"
    assert second[3] == "1.235e+07f1"


def test_damaged_samples_are_counted(tmp_path):
    cell(tmp_path / "0", [1, 0, 1])
    with (tmp_path / "0" / "samples.jsonl").open("a") as file:
        file.write('{"doc_id": 3, "ac')
    assert "samples: 3 of 3; 1 damaged line" in written(tmp_path).text


def test_axes_count_what_budgets_are_given_in(tmp_path):
    def html(folder):
        return page([folder], folder / "r.html", None)

    cell(tmp_path / "tokens" / "0", [0, 1], budget=None, budget_tokens=64, kv_bytes={})
    cell(tmp_path / "tokens" / "1", [0, 1], budget=None, budget_tokens=128, kv_bytes={})
    assert ">budget, tokens<" in html(tmp_path / "tokens")
    cell(tmp_path / "tokens" / "2", [0, 1], budget=0.2)
    assert ">budget, entries (mean k)<" in html(tmp_path / "tokens")
