"""What the tests of reports share: cells to report on, and the page as it is read."""

from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from h2o_lab.results import open_result

VOID = {"meta", "br", "img", "path", "use", "rect", "line", "circle", "polygon"}


class Reader(HTMLParser):
    """The tables, texts and addresses of a page, and whether its elements close in order."""

    def __init__(self):
        super().__init__()
        self.open, self.tables, self.links, self.scripts, self.words = [], [], [], 0, []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.links += [value for name, value in attrs if name in ("src", "href", "data", "srcset", "xlink:href")]
        self.scripts += tag == "script"
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in VOID:
            self.open.append((tag, given))

    def handle_startendtag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop()[0] == tag

    def handle_data(self, data):
        inside = [tag for tag, _ in self.open]
        if "td" in inside or "th" in inside:
            self.tables[-1][-1][-1] += data
        if not {"style", "script"} & set(inside):
            self.words.append(data)


def read(html):
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    return SimpleNamespace(
        text=" ".join(" ".join(reader.words).split()),
        tables=[[[" ".join(cell.split()) for cell in row] for row in table] for table in reader.tables],
        links=reader.links,
        scripts=reader.scripts,
    )


def cell(folder, right, policy="h2o", budget=0.2, **changes):
    """A finished cell whose questions were answered right (1) or wrong (0)."""
    result = open_result(folder)
    count = len(right)
    mean = sum(right) / count
    error = (mean * (1 - mean) / (count - 1)) ** 0.5
    samples = [{"doc_id": i, "acc": value} for i, value in enumerate(right)]
    known = {"model": "m", "task": "piqa", "policy": policy, "budget": budget, "main_metric": "acc"}
    known |= {"metrics": {"acc": mean, "acc_stderr": error}, "samples": count}
    known |= {"kv_bytes": {"resident_mean": 2**20 * (budget or 1)}, "tokens_per_second": 99.5}
    known |= {"overrides": [f"policy={policy}", f"budget={budget}"], "k": {"mean": 20.0}} | changes
    result.write_samples(known.pop("lines", samples))
    result.write_config(known.pop("config", {"task": {"name": "piqa", "limit": 8}}))
    result.finish(known)
    return folder


@pytest.fixture
def sweep(tmp_path):
    """Full, two cells of h2o, one that failed and one damaged file."""
    cell(tmp_path / "0", [1, 1, 0, 1, 1, 0, 1, 1], policy="full", budget=None)
    cell(tmp_path / "1", [1, 0, 0, 1, 1, 0, 1, 0])
    cell(tmp_path / "2", [1, 1, 0, 1, 1, 0, 1, 1], budget=0.5)
    try:
        raise ValueError("no weights")
    except ValueError as error:
        known = {"model": "m", "task": "piqa", "policy": "local", "budget": 0.2}
        open_result(tmp_path / "3").fail(error, known)
    (tmp_path / "4").mkdir()
    (tmp_path / "4" / "result.json").write_text("{")
    return tmp_path
