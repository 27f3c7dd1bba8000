"""What figures and tables show of stored cells: scores, intervals, the paper's numbers, texts."""

import pandas as pd
import pytest

from experiments import curves, fig1, fig2c, fig6_7, tables
from experiments.cells import expected, select
from experiments.paper import NUMBERS, TABLE1, TABLE9, numbers
from experiments.scores import scored
from h2o_lab.errors import UserError
from tests.support.stored_cells import store, stored


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


@pytest.mark.parametrize(
    ("beside", "expected_interval"),
    [
        ({"rouge2_stderr": 0.1}, (0.004, 0.396)),
        ({"rouge2_stderr": 0.1, "rouge2_low": 0.15, "rouge2_high": 0.3}, (0.15, 0.3)),
    ],
)
def test_the_bootstrap_says_how_sure_rouge_is_where_it_was_drawn(cells, tmp_path, beside, expected_interval):
    store(cells[0], tmp_path / "0", metrics={"rouge2": 0.2} | beside, main_metric="rouge2")
    row = scored(select(cells[:1], str(tmp_path)).frame).iloc[0]
    assert (row["low"], row["high"]) == pytest.approx(expected_interval, abs=1e-3)


@pytest.mark.parametrize("metric", ["seed", "samples", "acc_stderr", "f1"])
def test_only_metrics_can_be_shown(cells, tmp_path, metric):
    frame = select(cells[:1], stored(cells[:1], tmp_path)).frame
    with pytest.raises(UserError, match=f"--metric={metric} is not in .*: it has acc, acc_norm"):
        scored(frame, metric)


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


def test_of_the_papers_numbers_those_stand_beside_ours_that_can_be_compared(tmp_path):
    cells = expected(["+experiment=table9", "task=winogrande", "policy=full,h2o"])
    shown = tables.accuracies(scored(select(cells, stored(cells, tmp_path)).frame), "Title", TABLE9, TABLE1)
    theirs = shown.numbers[shown.numbers["source"].str.startswith("paper")]
    found = theirs[["source", "policy", "shots", "score"]].to_records(index=False).tolist()
    assert found == [("paper, OPT-30B", "full", 5, 70.24), ("paper, OPT-30B", "h2o", 5, 69.06)]


def test_lines_stand_by_the_size_of_their_budget(tmp_path):
    cells = expected(["task=piqa", "policy=h2o", "budget_tokens=16,128"])
    cells += expected(["task=piqa", "policy=h2o", "budget=0.2,1"])
    shown = tables.accuracies(scored(select(cells, stored(cells, tmp_path)).frame), "Title")
    lines = tables.as_markdown(shown).splitlines()[4:8]
    assert [line.split(" | ")[2] for line in lines] == ["0.2", "1", "16 tokens", "128 tokens"]


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
        "rouge2_low": 0.01,
        "rouge2_high": 0.09,
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
    assert "| h2o | 0 | 0.2 | smollm2_135m | 0.2 | 0.1 | 0.2 | 0.040 (0.010–0.090) | 0.1 |" in lines
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


def test_nothing_right_is_drawn_with_its_interval_beside_cells_that_have_none(cells, tmp_path):
    local = [cell for cell in cells if cell.policy == "local"]
    stored([cell for cell in cells if cell not in local], tmp_path, accuracy=0.0)
    for place, (cell, error) in enumerate(zip(local, ({}, {"acc_norm_stderr": 0.01}), strict=True)):
        store(cell, tmp_path / f"local_{place}", metrics={"acc_norm": 0.0} | error, main_metric="acc_norm")
    (ax,) = curves.by_budget(scored(select(cells, str(tmp_path)).frame), TABLE1).axes
    bars = {lines.get_label(): lines[2][0].get_segments() for lines in ax.containers}
    assert [segment[0][1] for segment in bars["h2o"]] == [0, 0]
    assert all(3 < segment[1][1] < 4 for segment in bars["h2o"]), "of 100 questions"
    assert [len(segment) for segment in bars["local"]] == [0, 2]


def test_numbers_of_the_paper_without_a_model_are_drawn_where_there_are_no_others(tmp_path):
    cells = expected(["+experiment=fig4", "task=winogrande", "budget=0.2", "task.num_fewshot=1,5"])
    frame = scored(select(cells, stored(cells, tmp_path)).frame)
    one, five = (ax.get_legend_handles_labels()[1] for ax in curves.by_budget(frame, TABLE1).axes)
    assert [label for label in one if "paper" in label] == ["paper (hollow)"]
    assert [label for label in five if "paper" in label] == ["paper, OPT-30B (hollow)"]


@pytest.mark.parametrize(
    ("words", "axis"),
    [
        (["budget=null", "budget_tokens=16,32"], "KV cache budget, tokens"),
        (["policy=full", "budget=0.1"], "KV cache budget, % of the prompt"),
        (["task=needle", "budget=0.1"], "KV cache budget, % of the prompt"),
    ],
)
@pytest.mark.parametrize("draw", [curves.by_budget, fig1.draw])
def test_curves_are_drawn_of_tokens_too_of_the_full_cache_alone_and_of_tasks_without_examples(
    tmp_path, words, axis, draw
):
    cells = expected(["+experiment=fig4", "task=piqa", *words])
    changes = {"fewshot": {}} if "task=needle" in words else {}
    (ax,) = draw(scored(select(cells, stored(cells, tmp_path, **changes)).frame)).axes
    assert "full cache, 95 % band" in ax.get_legend_handles_labels()[1]
    if draw is curves.by_budget:
        assert ax.get_xlabel() == axis


def test_cells_without_a_place_on_the_axis_are_named(tmp_path):
    cells = expected(["task=piqa", "policy=drop_h2", "budget_tokens=16"])
    frame = scored(select(cells, stored(cells, tmp_path)).frame)
    with pytest.raises(UserError, match="0 cannot be drawn: it has no heavy hitters removed, % of the prompt"):
        fig2c.draw(frame)


def test_memory_needs_the_full_cache(tmp_path):
    cells = expected(["+experiment=fig4", "task=piqa,copa", "budget=0.1"])
    frame = scored(select(cells, stored(cells, tmp_path)).frame)
    alone = (frame["policy"] != "full") | (frame["task"] == "piqa")
    (ax,) = fig1.draw(frame[alone]).axes
    assert ax.get_title().startswith("PIQA")
    with pytest.raises(UserError, match="add policy=full"):
        fig1.draw(frame[frame["policy"] != "full"])


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
