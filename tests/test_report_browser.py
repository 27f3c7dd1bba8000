"""The page in a real browser, where there is one: nothing is fetched, nothing is wrong, and tables sort."""

import os
import re
import shutil
import subprocess

import pytest
from test_report import cell, read

from h2o_lab.report.page import page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on PATH")


def opened(html, folder):
    """The page after its scripts ran, and what the browser's console says."""
    file = folder / "page.html"
    file.write_text(html, encoding="utf-8")
    options = ["--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--dump-dom"]
    options += ["--enable-logging=stderr", "--v=0", f"--user-data-dir={folder / 'profile'}"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.append("--no-sandbox")
    done = subprocess.run(
        [BROWSER, *options, "--virtual-time-budget=5000", file.as_uri()],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=True,
    )
    assert "</html>" in done.stdout, done.stderr
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture
def html(tmp_path):
    cell(tmp_path / "r" / "0", [1, 1, 0, 1, 1, 0, 1, 1], policy="full", budget=None)
    cell(tmp_path / "r" / "1", [1, 0, 0, 1, 1, 0, 1, 0])
    cell(tmp_path / "r" / "2", [1, 1, 0, 1, 1, 0, 1, 0], policy="local", model="m")
    return page([tmp_path / "r"], tmp_path / "page.html", None)


def test_the_page_opens_whole_and_without_a_complaint(html, tmp_path):
    """Its content policy forbids every request, so that an attempt would be a complaint."""
    dom, console = opened(html, tmp_path)
    assert console == []
    (table,) = read(dom).tables
    assert [row[0] for row in table] == ["policy", "full", "h2o", "local"]
    assert dom.count("<button") == len(table[0]), "each column can be sorted"
    assert dom.count("<svg") == 2


def scripted(html, script):
    """The page without its content policy, and a script at its end; neither is what users open."""
    free, found = POLICY.subn("", html)
    assert found == 1
    return free.replace("</body>", f"<script>{script}</script></body>")


def test_what_would_be_fetched_or_run_is_refused(html, tmp_path):
    evil = html.replace("<main>", '<main><img src="http://127.0.0.1:9/x.png"><script>document.title = "x"</script>')
    dom, console = opened(evil, tmp_path)
    assert len(console) == 2
    assert "<title>x</title>" not in dom


@pytest.mark.parametrize(
    ("column", "clicks", "order"),
    [
        ("acc", 1, ["h2o", "local", "full"]),
        ("acc", 2, ["full", "local", "h2o"]),
        ("acc", 3, ["full", "h2o", "local"]),
        ("policy", 2, ["local", "h2o", "full"]),
        ("minus full", 2, ["local", "h2o", "full"]),
    ],
)
def test_a_click_sorts_by_a_column_and_what_is_missing_stays_last(html, tmp_path, column, clicks, order):
    find = f"[...document.querySelectorAll('th button')].find((each) => each.textContent === '{column}')"
    dom, console = opened(scripted(html, f"for (let i = 0; i < {clicks}; i++) {find}.click();"), tmp_path)
    assert console == []
    assert [row[0] for row in read(dom).tables[0][1:]] == order
    assert len(re.findall("<th [^>]*aria-sort", dom)) == (clicks < 3)


def test_a_link_from_the_table_unfolds_the_cell(html, tmp_path):
    dom, _ = opened(scripted(html, "document.querySelector('td a[href=\"#cell-1\"]').click();"), tmp_path)
    assert re.findall(r'<details id="(cell-\d)" open', dom) == ["cell-1"]
