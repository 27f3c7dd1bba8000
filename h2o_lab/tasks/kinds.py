"""The kinds of task, each a module with the same four functions.

`check(task, data, policy, prefill)` refuses what cannot work before anything slow starts, `load(task, data)` reads
what is to be evaluated (no weights), `content(loaded_data, task)` is what of it determines a result, in plain
values, and `run(loaded_data, cfg, plan, model, journal, recorder)` evaluates it.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from h2o_lab.errors import UserError

KINDS = ("harness", "summarisation", "perplexity", "retrieval")


def kind_of(name: str) -> ModuleType:
    """The module of a kind of task.

    Raises:
        UserError: there is no such kind.
    """
    if name not in KINDS:
        raise UserError(f"task.kind={name} is unknown: it must be one of {', '.join(KINDS)}.")
    return import_module(f"h2o_lab.tasks.{name}")
