"""What there is to choose from: policies, models, tasks, experiments, sources of data, statistics, trackers.

python -m h2o_lab.list
python -m h2o_lab.list policies
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from h2o_lab.config import config_dir
from h2o_lab.errors import UserError
from h2o_lab.log import complain

RUN = "python -m h2o_lab.run "
NOTHING = "–"
PIPE_WIDTH = 160
"""Columns where nobody watches."""


@dataclass(frozen=True)
class Option:
    """One YAML of a group.

    Attributes:
        name: what stands behind `group=`.
        command: the command in its first comment.
        says: the other lines of that comment.
        values: the YAML itself.
    """

    name: str
    command: str
    says: str
    values: dict[str, Any]


def main(argv: Sequence[str] | None = None) -> None:
    """Show the table of one group, or the groups; an unknown one ends the process with code 2."""
    parser = argparse.ArgumentParser(
        prog="python -m h2o_lab.list",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("group", nargs="?", help=f"one of {', '.join(GROUPS)}; none: these groups")
    asked = parser.parse_args(argv).group
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_WIDTH)
    try:
        console.print(overview() if asked is None else listing(asked))
    except UserError as error:
        complain(str(error))
        sys.exit(2)


def overview() -> Table:
    """The groups, what is in them and how an option is chosen."""
    table = _table("group", "options", "what they are", "choose with")
    for name, group in GROUPS.items():
        table.add_row(name, str(len(list(options(group.folder)))), group.says, group.choose)
    return table


def listing(name: str) -> Table:
    """The options of a group of `GROUPS`.

    Raises:
        UserError: there is no such group.
    """
    if name not in GROUPS:
        raise UserError(f"{name} is no group that can be listed: it must be one of {', '.join(GROUPS)}.")
    group = GROUPS[name]
    table = _table("name", "what it is", *group.columns)
    for option, cells, says in group.rows(list(options(group.folder))):
        command = option.command.removeprefix(RUN)
        what = Text.assemble(says, "\n" if says and command else "", (command, "dim"))
        table.add_row(option.name, what, *cells)
    return table


def options(folder: str) -> Iterator[Option]:
    """The YAMLs of `conf/<folder>`, by name."""
    for file in sorted((config_dir() / folder).glob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        command, says = _head(text)
        yield Option(file.stem, command, says, yaml.safe_load(text) or {})


def _head(text: str) -> tuple[str, str]:
    """The command and the remarks of the comment that a YAML opens with."""
    lines = re.match(r"(?:#.*\n)*", text)
    comments = [line.lstrip("# ") for line in (lines[0] if lines else "").splitlines()]
    comments = [line for line in comments if not line.startswith("@package")]
    command = next((line for line in comments if line.startswith(RUN)), "")
    return command, " ".join(line for line in comments if line != command)


Row = tuple[Option, list[str], str]
"""An option, the cells behind its remark, and the remark."""


def _policies(found: list[Option]) -> list[Row]:
    """The rule is the first line of the class's docstring, as in `docs/policies.md`; the plainest come first."""
    import inspect

    from hydra.utils import get_class

    from h2o_lab.policies import ALL, Policy

    kinds: list[tuple[Option, type[Policy]]] = [(option, get_class(option.values["_target_"])) for option in found]
    order = {kind: place for place, kind in enumerate(ALL)}
    kinds.sort(key=lambda pair: order.get(pair[1], len(order)))
    return [
        (
            option,
            ["yes" if kind.causal else "no", "yes" if kind.evicts else "no", kind.source],
            (inspect.getdoc(kind) or "").partition("\n")[0],
        )
        for option, kind in kinds
    ]


def _models(found: list[Option]) -> list[Row]:
    return [
        (
            option,
            [
                option.values["source"],
                str(option.values.get("id") or option.values.get("path") or NOTHING),
                option.values["dtype"],
            ],
            option.says,
        )
        for option in found
    ]


def _tasks(found: list[Option]) -> list[Row]:
    rows: list[Row] = []
    for option in found:
        bases = [re.match(r"base/(\w+)@", str(default)) for default in option.values.get("defaults", [])]
        kind = next((base[1] for base in bases if base), str(option.values.get("kind", NOTHING)))
        rows.append((option, [kind, ", ".join(_sources(kind, option.name))], option.says))
    return rows


def _sources(kind: str, name: str) -> list[str]:
    """Which `data=` a task can have; texts of one's own need none."""
    from h2o_lab.data import available
    from h2o_lab.data.texts import FOLDERS

    if kind == "retrieval":
        drawn = {"needle": ["packaged"], "multi_doc_qa": ["folder"]}
        return drawn.get(name, ["packaged", "folder"])
    if kind == "perplexity":
        if name not in FOLDERS:
            return ["task.path=FILE"]
        return ["packaged", "folder", "hub"] if name == "pg19" else ["folder", "hub"]
    return available(name)


def _plain(found: list[Option]) -> list[Row]:
    return [(option, [], option.says) for option in found]


@dataclass(frozen=True)
class Group:
    """A folder of `conf`, what is in it, how an option is chosen, and what its table says."""

    folder: str
    says: str
    choose: str
    columns: tuple[str, ...]
    rows: Callable[[list[Option]], list[Row]]


GROUPS = {
    "policies": Group(
        "policy", "what is kept of the cache", "policy=NAME", ("causal", "saves memory", "source"), _policies
    ),
    "models": Group("model", "causal language models", "model=NAME", ("source", "id", "dtype"), _models),
    "tasks": Group("task", "what is evaluated", "task=NAME", ("kind", "data"), _tasks),
    "experiments": Group("experiment", "sweeps of the paper", "-m +experiment=NAME", (), _plain),
    "data": Group("data", "where rows and texts come from", "data=NAME", (), _plain),
    "stats": Group("stats", "what is recorded of the attention", "stats=NAME", (), _plain),
    "trackers": Group("tracker", "where runs are logged besides", "tracker=NAME", (), _plain),
}


def _table(*columns: str) -> Table:
    table = Table()
    for place, column in enumerate(columns):
        table.add_column(column, no_wrap=place == 0, overflow="fold")
    return table


if __name__ == "__main__":
    main()
