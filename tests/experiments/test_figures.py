"""Heat maps of depths and curves of a book, out of stored results."""

import numpy as np
import pandas as pd
import pytest

from experiments import fig5
from experiments.fig2b import partial
from experiments.heat import maps
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
    figure = maps(load(needles))
    full, h2o = figure.axes[:2]
    assert full.get_title() == "full"
    assert full.images[0].get_array().tolist() == [[1, 1, 1]]
    assert h2o.images[0].get_array().tolist() == [[0, 0.5, 1], [0, 0, 1]]
    assert [label.get_text() for label in h2o.get_yticklabels()] == ["0.5", "0.1"]
    assert [label.get_text() for label in h2o.get_xticklabels()] == ["0", "0.5", "1"]


def test_the_curve_of_a_book_is_the_mean_loss_of_each_stretch(tmp_path):
    samples = [
        {"title": "Emma", "tokens": (i + 1) * 1000, "perplexity": value, "process_bytes": 2**20 * (100 + i)}
        for i, value in enumerate([10, 10, 10, 10, 10, 2, 8, 4, 4, 4])
    ]
    told = {"task": "pg19", "policy": "streaming", "budget": None, "budget_tokens": 256}
    stored(tmp_path / "0", samples, metrics={"perplexity": 6.0}, text={"mode": "streaming"}, **told)
    above, below = fig5.draw(load(tmp_path)).axes
    line = above.lines[0]
    assert line.get_xdata().tolist() == [5000, 10000]
    np.testing.assert_allclose(line.get_ydata(), [10, 4])
    assert below.lines[0].get_ydata().tolist() == [104, 109]
    assert line.get_label() == "streaming, 256 tokens: 6.0"


def test_every_book_and_model_has_its_own_panels(tmp_path):
    samples = [
        {"title": title, "tokens": (i + 1) * 1000, "perplexity": value, "process_bytes": 2**20}
        for title, value in (("Emma", 3), ("Persuasion", 5))
        for i in range(5)
    ]
    for number, model in enumerate(("a/small", "large")):
        told = {"model": model, "task": "pg19", "policy": "streaming", "budget": 0.2}
        stored(tmp_path / str(number), samples, metrics={"perplexity": 4.0}, **told)
    above = fig5.draw(load(tmp_path)).axes[:4]
    assert sorted((ax.get_title(), ax.lines[0].get_ydata().round(6).tolist()) for ax in above) == [
        ("large, Emma", [3]),
        ("large, Persuasion", [5]),
        ("small, Emma", [3]),
        ("small, Persuasion", [5]),
    ]
    assert {len(ax.lines) for ax in above} == {1}


def test_a_correlation_at_equal_count_is_that_of_what_the_count_leaves():
    draw = np.random.default_rng(0)
    count = pd.Series(draw.normal(size=2000))
    x, y = count + draw.normal(size=2000), count + draw.normal(size=2000)
    assert x.corr(y, "spearman") > 0.4
    assert abs(partial(x, y, count)) < 0.05
    ranks = pd.DataFrame({"x": x, "y": y}).rank()
    left = [ranks[name] - np.polyval(np.polyfit(count.rank(), ranks[name], 1), count.rank()) for name in ranks]
    assert partial(x, y, count) == pytest.approx(np.corrcoef(*left)[0, 1])


def test_numbers_of_tokens_are_budgets_too(tmp_path):
    for tokens in (16, 128):
        metrics = {"accuracy_at_0": 0.5}
        stored(tmp_path / str(tokens), budget=None, budget_tokens=tokens, metrics=metrics)
    labels = maps(load(tmp_path)).axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == ["128 tokens", "16 tokens"]
