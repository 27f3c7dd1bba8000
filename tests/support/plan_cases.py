"""What the tests of plans share: cells, what they really take, and a speed that is not measured."""

from functools import partial
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from h2o_lab.cells import Journal
from h2o_lab.compute import run_cell, task_data
from h2o_lab.plan import planner
from h2o_lab.plan.speed import Speed
from h2o_lab.plan.table import plan_table
from tests.support.furnished import furnish, small

PIQA = ["task.num_fewshot=1", "task.batch_tokens=128"]
FIXED = ["task.fewshot=fixed", "task.num_fewshot=2", "task.batch_tokens=512"]
ASKED = {
    "xsum": ["task=xsum", "task.stop=[]", "task.temperature=0", "task.max_new_tokens=9", "task.batch_tokens=300"],
    "needle": ["task=needle", "task.size=60", "task.max_new_tokens=5", "task.limit=2", "task.batch_tokens=800"],
    "lm-eval": [
        *["task=lm_eval", "task.name=asks", "task.include_path={}/generate_until", "task.num_fewshot=0"],
    ],
}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """A furnished folder."""
    return furnish(tmp_path_factory.mktemp("plan"))


@pytest.fixture
def given(workplace):
    """Overrides on the small model and data."""
    return partial(small, workplace)


def ran(cell) -> tuple[dict, list[dict]]:
    """The record and the samples of a cell that is really run."""
    data = task_data(*cell.described[1:])[0]
    return run_cell(cell.cfg, cell.plan, data, Journal(), {})[:2]


@pytest.fixture
def measurements(monkeypatch):
    """What is measured, instead of measuring it."""
    made = []

    def measured(work, cfg, plan, loaded):
        made.append((loaded, plan.policy.name, cfg.budget))
        return Speed(100.0, 0.5)

    monkeypatch.setattr(planner, "load_model", lambda cfg: Path(cfg.path).name)
    monkeypatch.setattr(planner, "measured", measured)
    return made


def shown(lines) -> str:
    """The table as text."""
    console = Console(width=200, record=True, file=StringIO())
    console.print(plan_table(lines))
    return console.export_text()
