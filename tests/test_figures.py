"""Figures out of stored results: what is drawn, what the files say, and what is missing."""

import sys

import numpy as np
import pytest
from matplotlib.image import imread
from PIL import Image

from experiments import book, retrieval
from experiments.drawing import draw_command
from h2o_lab import log
from h2o_lab.errors import UserError
from h2o_lab.results import load, open_result

DEPTHS = (0.0, 0.5, 1.0)


def stored(folder, samples=(), **changes):
    """A finished result as the runner writes it, in short."""
    cell = {"model": "m", "task": "needle", "policy": "h2o", "budget": 0.2, "budget_tokens": None}
    result = open_result(folder)
    result.write_samples(list(samples))
    result.finish(cell | changes)


@pytest.fixture
def needles(tmp_path):
    """Runs of full, and of h2o at two budgets."""
    for number, (policy, budget, accuracy) in enumerate(
        [("full", None, [1, 1, 1]), ("h2o", 0.5, [0, 0.5, 1]), ("h2o", 0.1, [0, 0, 1])]
    ):
        metrics = {f"accuracy_at_{depth:g}": value for depth, value in zip(DEPTHS, accuracy, strict=True)}
        metrics |= {f"{name}_stderr": 0.1 for name in metrics}
        stored(tmp_path / str(number), policy=policy, budget=budget, metrics=metrics)
    return tmp_path


def test_a_heat_map_has_depths_across_and_the_smallest_budget_below(needles):
    figure = retrieval.draw(load(needles))
    full, h2o = figure.axes[:2]
    assert full.get_title() == "needle, full"
    assert full.images[0].get_array().tolist() == [[1, 1, 1]]
    assert h2o.images[0].get_array().tolist() == [[0, 0.5, 1], [0, 0, 1]]
    assert [label.get_text() for label in h2o.get_yticklabels()] == ["0.5", "0.1"]
    assert [label.get_text() for label in h2o.get_xticklabels()] == ["0", "0.5", "1"]


def test_a_run_that_was_repeated_counts_once(needles):
    metrics = {f"accuracy_at_{depth:g}": 0.5 for depth in DEPTHS}
    stored(needles / "9", budget=0.1, metrics=metrics)
    h2o = retrieval.draw(load(needles)).axes[1]
    assert h2o.images[0].get_array().tolist() == [[0, 0.5, 1], [0.5, 0.5, 0.5]], "the newest"


def test_the_curve_of_a_book_is_the_mean_loss_of_each_stretch(tmp_path):
    samples = [
        {"tokens": (i + 1) * 1000, "perplexity": value, "process_bytes": 2**20 * (100 + i)}
        for i, value in enumerate([10, 10, 10, 10, 10, 2, 8, 4, 4, 4])
    ]
    told = {"task": "pg19", "policy": "streaming", "budget": None, "budget_tokens": 256}
    stored(tmp_path / "0", samples, metrics={"perplexity": 6.0}, text={"mode": "streaming"}, **told)
    above, below = book.draw(load(tmp_path)).axes
    line = above.lines[0]
    assert line.get_xdata().tolist() == [5000, 10000]
    np.testing.assert_allclose(line.get_ydata(), [10, 4])
    assert below.lines[0].get_ydata().tolist() == [104, 109]
    assert line.get_label() == "streaming, k = 256: 6.0"


def test_pictures_say_the_command_and_the_commit(needles, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x", str(needles), "--out", str(tmp_path / "pictures")])
    draw_command("retrieval", None, retrieval.draw)
    png = tmp_path / "pictures" / "retrieval.png"
    assert "python -m experiments.retrieval; h2o_lab" in Image.open(png).info["Description"]
    assert imread(png).min() < 0.5, "something is drawn"
    assert b"python -m experiments.retrieval" in (tmp_path / "pictures" / "retrieval.pdf").read_bytes()


@pytest.mark.parametrize("module", [retrieval, book])
def test_missing_runs_are_named_with_their_command(module, tmp_path):
    stored(tmp_path / "0", task="piqa", metrics={"acc": 0.5})
    with pytest.raises(UserError, match=r"run python -m h2o_lab\.run -m \+experiment="):
        module.draw(load(tmp_path))


def test_a_command_without_results_ends_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x", str(tmp_path / "nowhere")])
    said: list[str] = []
    monkeypatch.setattr(log, "complain", said.append)
    with pytest.raises(SystemExit) as ended:
        draw_command("retrieval", None, retrieval.draw)
    assert ended.value.code == 2
    assert said[0].startswith("There is no file or folder")
