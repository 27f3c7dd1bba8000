"""What a plan lists, shows and refuses: its cells, its table and the command."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hydra.errors import HydraException

from h2o_lab.cells import Cell
from h2o_lab.errors import UserError
from h2o_lab.plan.cells import planned
from h2o_lab.plan.planner import plan
from h2o_lab.plan.table import count, duration, size
from h2o_lab.results import open_result
from tests.support.command_line import surroundings
from tests.support.plan_cases import PIQA, given, measurements, shown, workplace

__all__ = ["given", "measurements", "workplace"]  # fixtures


# Cells


def test_cells_are_told_apart_as_the_run_does_it(workplace, given):
    words = given(*PIQA, "policy=full,h2o", "budget=0.2,0.5", f"results_dir={workplace}/known")
    full, again, small, large = planned(words)
    assert [cell.state for cell in (full, again, small, large)] == ["to do", "as cell 1", "to do", "to do"]
    assert {"policy=h2o", "budget=0.2"} <= set(small.overrides)
    cell = Cell(workplace / "known", small.name)
    result = open_result(workplace / "known" / "0")
    with cell.claimed():
        cell.begin(result)
        result.write_samples([])
        result.finish({"cell": small.name})
    assert [cell.state for cell in planned(words)] == ["to do", "as cell 1", "finished", "to do"]
    assert [cell.state for cell in planned([*words, "resume=false"])] == ["to do"] * 4
    lines = plan(words)
    assert lines[0].cost == lines[1].cost != lines[2].cost


def test_the_cells_of_an_experiment_are_those_that_it_names(given, tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nseed: 7\nhydra:\n  sweeper:\n    params:\n      task: needle,kv_retrieval\n"
        "      policy: full,h2o,local\n      budget: 0.1,0.2\n"
    )
    cells = planned(
        given(f"hydra.searchpath=[file://{tmp_path}]", "+experiment=mine", "data=packaged", "data.dir=null")
    )
    assert len(cells) == 2 * 3 * 2
    assert {cell.cfg.task.name for cell in cells} == {"needle", "kv_retrieval"}
    assert {cell.plan.policy.name for cell in cells} == {"full", "h2o", "local"}
    assert {(cell.cfg.budget, cell.cfg.seed) for cell in cells} == {(0.1, 7), (0.2, 7)}
    assert [cell.state for cell in cells].count("to do") == 2 * (1 + 2 * 2)


def test_a_sweeper_that_searches_cannot_be_planned(given):
    with pytest.raises(UserError, match="hydra/sweeper=basic chooses its cells as it goes"):
        planned(given("budget=0.2", "hydra.sweeper._target_=some.Searcher"))


BAD = {
    "a budget": (["budget=0.2,1.5"], UserError, r"budget=1.5 is out of range.*\(cell .*budget=1.5"),
    "a policy": (["policy=h20", "budget=0.2"], HydraException, "Could not find 'policy/h20'"),
    "a key": (["bugdet=0.2"], HydraException, "Could not override 'bugdet'"),
    "an override": (["budget=[0.2"], HydraException, "."),
    "a long question": (
        ["budget=0.2", "model.path={}/opt", "task.num_fewshot=5"],
        UserError,
        r"the model's position table has 256.*\(cell budget=0.2",
    ),
    "a long prompt": (
        ["task=needle", "task.size=500", "budget=0.2", "model.path={}/opt"],
        UserError,
        "positions and the model's table has 256",
    ),
    "a long window": (
        ["task=text", "task.path={}/book.txt", "task.window=400", "budget=0.2", "model.path={}/opt"],
        UserError,
        "positions and the model's table has 256",
    ),
    "a short text": (
        ["task=text", "task.path={}/book.txt", "task.tokens=2", "task.limit=1", "task.title=none", "budget=0.2"],
        UserError,
        "task.title=none is in no title",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_as_by_the_run(given, case):
    words, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        plan(given(*words))


# The table


def test_the_table_says_what_is_to_be_done(given, measurements):
    words = given(*PIQA, "policy=full,h2o", "budget=0.2,0.5")
    lines = plan(words, 4, calibrate=True)
    lines[3] = replace(lines[3], cell=replace(lines[3].cell, state="finished"))
    said = " ".join(shown(lines).split())
    to_do = [lines[0], lines[2]]
    assert "│ policy=h2o budget=0.2 │ to do │" in said
    assert "│ policy=full budget=0.5 │ as cell 1 │" in said
    assert f"│ to do │ 2 of 4 │ 16 │ {count(sum(line.cost.tokens for line in to_do))} │" in said
    assert f"{duration(sum(line.seconds for line in to_do))} │ └" in said
    assert f"≈ {count(lines[0].cost.tokens)}" in said
    for word in ("≈: scaled from the first samples", "finished: below results_dir", size(lines[2].cost.kv_max)):
        assert word in said
    assert "counted at their longest" not in said


def test_sizes_and_times_are_told_in_readable_units():
    assert [size(number) for number in (512, 2**20, 1.5 * 2**30, 3000 * 2**30)] == [
        "0.5 KiB",
        "1.0 MiB",
        "1.5 GiB",
        "3,000.0 GiB",
    ]
    assert [duration(seconds) for seconds in (0.2, 59, 61, 3599, 7265)] == [
        "1 s",
        "59 s",
        "1:01 min",
        "59:59 min",
        "2:01:05 h",
    ]


# The command


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "h2o_lab.plan", *words],
        cwd=folder,
        env=surroundings(folder),
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_shows_a_plan_and_writes_nothing(workplace, given, tmp_path):
    words = given("-m", "policy=full,h2o", "budget=0.2", "task.num_fewshot=1")
    words = [word for word in words if not word.startswith("results_dir")]
    done = command(tmp_path, *words, "results_dir=results", "--samples", "3")
    assert done.returncode == 0, done.stderr
    assert "policy=h2o" in done.stdout
    assert "2 of 2" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["policy=h20", "budget=0.2"], "error: In 'config': Could not find 'policy/h20' Available options in"),
        (["--samples", "0", "budget=0.2"], "error: --samples=0 is out of range: it must be 1 or more."),
    ],
)
def test_the_command_refuses_bad_input_in_one_sentence(workplace, given, words, said):
    done = command(workplace, "--no-calibrate", *given(*words))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 1
