"""What figures and tables show of stored cells: scores, intervals, the paper's numbers, texts."""

import pandas as pd
import pytest

from experiments import curves, fig1, fig6_7, tables
from experiments.cells import expected, select
from experiments.paper import NUMBERS, TABLE1, numbers
from experiments.scores import scored, wilson
from tests.stored_cells import store, stored


@pytest.fixture(scope="module")
def cells():
    """The full cache, and h2o and local at two budgets."""
    return expected(["+experiment=fig4", "task=piqa", "budget=0.1,0.2"])


def test_shares_are_percent_with_an_interval_that_stays_within_them(cells, tmp_path):
    frame = select(cells[:1], stored(cells[:1], tmp_path, accuracy=1.0)).frame
    row = scored(frame).iloc[0]
    assert (row["metric"], row["score"], row["high"]) == ("acc_norm", 100, 100)
    assert row["low"] == pytest.approx(96.3, abs=0.1)
    assert scored(frame, "acc").iloc[0]["score"] == 50
    rouge = frame.assign(rouge2=0.2, rouge2_stderr=0.1)
    assert scored(rouge, "rouge2").iloc[0]["high"] == pytest.approx(0.396, abs=1e-3)
    assert wilson(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)


def test_a_table_shows_the_papers_numbers_beside_ours(cells, tmp_path):
    frame = scored(select(cells, stored(cells, tmp_path)).frame)
    shown = tables.accuracies(frame, "Title", TABLE1)
    lines = tables.as_markdown(shown).splitlines()
    assert lines[2] == "| policy | shots | budget | source | piqa |"
    assert "| full | 5 | – | smollm2_135m | 60.0 (50.2–69.1) |" in lines
    assert lines[lines.index("| full | 5 | – | smollm2_135m | 60.0 (50.2–69.1) |") + 1] == (
        "| full | 5 | – | paper, OPT-30B | 78.51 |"
    )
    assert "- The paper's rows are its own numbers (Table 1), without intervals." in lines
    assert tables.as_rich(shown).row_count == len(shown.numbers)


def test_a_table_without_the_papers_numbers_has_none(cells, tmp_path):
    frame = scored(select(cells, stored(cells, tmp_path)).frame)
    shown = tables.accuracies(frame, "Title")
    assert "paper" not in tables.as_markdown(shown)
    assert len(shown.numbers) == len(frame)


def test_summaries_are_shown_with_their_first_texts(tmp_path):
    cells = expected(["+experiment=fig6_7"])
    values = {
        "rouge2": 0.04,
        "rouge2_stderr": 0.03,
        "rouge1": 0.2,
        "rougeL": 0.1,
        "self_bleu": 0.2,
        "repetition": 0.1,
    }
    for cell in cells:
        text = {"doc_id": 0, "reference": "What it says.", "text": f" by {cell.policy}\n"}
        store(cell, tmp_path / cell.policy, samples=[text], metrics=values, main_metric="rouge2")
    shown = fig6_7.table(scored(select(cells, str(tmp_path)).frame))
    lines = tables.as_markdown(shown).splitlines()
    assert "| h2o | 0 | 0.2 | smollm2_135m | 0.2 | 0.1 | 0.2 | 0.040 (0.000–0.099) | 0.1 |" in lines
    assert "| h2o | 0 | 0.2 | paper, LLaMA-7B | 0.0051 | – | – | – | – |" in lines
    assert [line for line in lines if line.startswith("> ")] == [
        "> What it says.",
        "> by full",
        "> by h2o",
        "> by local",
    ]


def test_a_panel_has_a_line_per_policy_levels_and_the_papers_points(cells, tmp_path):
    frame = scored(select(cells, stored(cells, tmp_path)).frame)
    (ax,) = curves.by_budget(frame, TABLE1).axes
    handles, labels = ax.get_legend_handles_labels()
    assert labels[:2] == ["full cache, 95 % band", "chance"]
    assert sorted(labels[2:]) == ["h2o", "local", "paper, OPT-30B (hollow)"]
    h2o = handles[labels.index("h2o")].lines[0]
    assert h2o.get_ydata().tolist() == [60, 60]
    assert h2o.get_xdata() == pytest.approx([10, 20], abs=0.5)
    full = handles[0]
    assert full.get_ydata() == [60, 60]
    assert ax.get_title() == "PIQA, acc_norm, n = 100"


def test_memory_is_relative_to_the_full_cache(cells, tmp_path):
    frame = scored(select(cells, stored(cells, tmp_path)).frame)
    (ax,) = fig1.draw(frame).axes
    handles, labels = ax.get_legend_handles_labels()
    assert handles[labels.index("local")].lines[0].get_xdata() == pytest.approx([10, 20], abs=0.5)


def test_every_number_of_the_paper_says_where_it_stands():
    frame = pd.DataFrame(NUMBERS)
    assert frame[["where", "task", "policy", "value"]].notna().all().all()
    keys = ["where", "model", "task", "policy", "shots", "budget", "metric"]
    assert not frame.duplicated(keys).any()
    assert numbers("Table 9", TABLE1).duplicated(["model", "task", "policy", "shots", "budget"]).sum() == 0
