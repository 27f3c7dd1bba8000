"""The page in a real browser, where one works: nothing is fetched, nothing is wrong, and tables sort."""

import html
import json
import re
import shutil
import subprocess

import pytest

from h2o_lab.report.page import page
from tests.support.report_pages import cell, read

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
OPTIONS += ["--disable-background-networking", "--dump-dom", "--enable-logging=stderr", "--v=0"]
CONTENT_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Opens a page; returns it as it is after its scripts ran, and what the console says."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium or Chrome on PATH")
    folder = tmp_path_factory.mktemp("browser")

    def opened(page):
        file = folder / "page.html"
        file.write_text(page, encoding="utf-8")
        options = [*OPTIONS, f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000"]
        command = [program, *options, file.as_uri()]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, check=False)
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    if "works" not in opened("<!DOCTYPE html><p>works</p>")[0]:
        pytest.skip(f"{program} does not work here")
    return opened


@pytest.fixture
def report(tmp_path):
    cell(tmp_path / "r" / "0", [1, 1, 0, 1, 1, 0, 1, 1], policy="full", budget=None)
    cell(tmp_path / "r" / "1", [1, 0, 0, 1, 1, 0, 1, 0])
    cell(tmp_path / "r" / "2", [1, 1, 0, 1, 1, 0, 1, 0], policy="local")
    return page([tmp_path / "r"], tmp_path / "page.html", None)


def scripted(report, script):
    """The page with a script at its end, which its content policy would forbid."""
    free, found = CONTENT_POLICY.subn("", report)
    assert found == 1
    return free.replace("</body>", f"<script>{script}</script></body>")


def test_the_page_opens_whole_and_without_a_complaint(report, browser):
    """Its content policy forbids every request, so that an attempt would be a complaint."""
    dom, console = browser(report)
    assert console == []
    (table,) = read(dom).tables
    assert [row[0] for row in table] == ["policy", "full", "h2o", "local"]
    assert dom.count("<button") == len(table[0]), "each column can be sorted"
    assert dom.count("<svg") == 2


def test_what_would_be_fetched_or_run_is_refused(report, browser):
    evil = '<main><img src="http://127.0.0.1:9/x.png"><script>document.title = "x"</script>'
    dom, console = browser(report.replace("<main>", evil))
    assert len(console) == 2
    assert "<title>x</title>" not in dom


CLICKS = """
const orders = {};
for (const name of ["acc", "policy", "minus full"]) {
  const button = [...document.querySelectorAll("th button")].find((each) => each.textContent === name);
  orders[name] = [1, 2, 3].map(() => {
    button.click();
    return [...document.querySelectorAll("tbody tr")].map((row) => row.cells[0].textContent).join(" ")
      + " " + [...document.querySelectorAll("th[aria-sort]")].map((each) => each.ariaSort).join(" ");
  });
}
document.body.dataset.orders = JSON.stringify(orders);
document.querySelector('td a[href="#cell-1"]').click();
"""


def test_a_click_sorts_by_a_column_and_a_link_unfolds_its_cell(report, browser):
    dom, console = browser(scripted(report, CLICKS))
    assert console == []
    orders = json.loads(html.unescape(re.search(r'data-orders="([^"]*)"', dom)[1]))
    assert orders == {
        "acc": ["h2o local full ascending", "full local h2o descending", "full h2o local "],
        "policy": ["full h2o local ascending", "local h2o full descending", "full h2o local "],
        "minus full": ["h2o local full ascending", "local h2o full descending", "full h2o local "],
    }
    assert re.findall(r'<details id="(cell-\d)" open', dom) == ["cell-1"]
