"""What the tests of experiments share: the cells of a small figure, and the warnings that are given."""

import pytest

from experiments.cells import expected

FIG4 = ["+experiment=fig4"]
SMALL = [*FIG4, "task=piqa", "budget=0.1,0.2"]
"""Five cells: the full cache, and h2o and local at two budgets."""


@pytest.fixture(scope="module")
def cells():
    return expected(SMALL)


def warnings_of(monkeypatch, module) -> list[str]:
    warned: list[str] = []
    monkeypatch.setattr(module.logger, "warning", lambda text, *words: warned.append(text % words))
    return warned
