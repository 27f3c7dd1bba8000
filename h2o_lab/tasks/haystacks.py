"""What retrieval tasks hide a fact in: numbers in filler, pairs of identifiers, passages."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase

from h2o_lab.config import DataConfig, RetrievalConfig
from h2o_lab.data.jsonl import read_jsonl
from h2o_lab.data.schema import checked
from h2o_lab.errors import UserError

QUESTIONS = 10
"""Drawn where `task.limit` is null and the questions are not read from a file."""
FILLER = "The river runs to the sea. Snow lies on the hills. A bird sits in the old tree. The road is long. "
FILES = {"kv_retrieval": "kv_retrieval*.jsonl", "multi_doc_qa": "nq_open*.jsonl"}
FOLDER = "longctx"
HAYSTACKS = ("needle", "kv_retrieval", "multi_doc_qa")


class Facts(Protocol):
    """Questions that can be asked at any depth."""

    @property
    def origin(self) -> str:
        """Where they come from."""
        ...

    def __len__(self) -> int: ...

    def question(self, index: int, depth: float, tokenizer: PreTrainedTokenizerBase) -> tuple[str, list[str]]:
        """The prompt with the fact at this depth (0 first, 1 last), and the right answers."""
        ...


def load_facts(task: RetrievalConfig, data: DataConfig) -> Facts:
    """The facts of a retrieval task.

    Raises:
        UserError: the source has none, or its rows cannot be read.
    """
    count = task.limit or QUESTIONS
    if task.name == "needle":
        return Needles(count, task.size, task.data_seed)
    if data.source == "folder":
        file = _file(task.name, data.dir)
        origin = f"folder {data.dir}: {file.parent.name}/{file.name}"
        if task.name == "kv_retrieval":
            return Pairs(read_jsonl(file, _pairs)[: task.limit], task.size, origin)
        return Passages(read_jsonl(file, _passage), task.limit, task.size, task.data_seed, origin)
    if task.name == "kv_retrieval":
        return Pairs(_draw_pairs(count, task.size, task.data_seed), task.size, f"drawn, seed {task.data_seed}")
    raise UserError(f"data={data.source} has no {task.name}: use data=folder data.dir=FOLDER, with {FOLDER}/.")


@dataclass(frozen=True)
class Needles:
    """A five-digit number between filler sentences of about `size` tokens."""

    count: int
    size: int
    seed: int

    @property
    def origin(self) -> str:
        return f"drawn, seed {self.seed}"

    def __len__(self) -> int:
        return self.count

    def question(self, index: int, depth: float, tokenizer: PreTrainedTokenizerBase) -> tuple[str, list[str]]:
        number = str(random.Random(f"{self.seed}/{index}").randint(10_000, 99_999))
        each = len(tokenizer.encode(FILLER, add_special_tokens=False))
        repeats = max(1, round(self.size / each))
        before = round(depth * repeats)
        needle = f"The secret number is {number}. Keep it in mind: {number} is the secret number. "
        text = FILLER * before + needle + FILLER * (repeats - before)
        head = "Somewhere in this text stands a secret number. Read it and tell the number at the end.\n\n"
        return f"{head}{text}\n\nWhat is the secret number? The secret number is", [number]


@dataclass(frozen=True)
class Pairs:
    """Pairs of identifiers as JSON, one of whose values is asked for."""

    rows: Sequence[dict[str, Any]]
    size: int
    origin: str

    def __post_init__(self) -> None:
        least = min(len(row["pairs"]) for row in self.rows)
        if self.size > least:
            raise UserError(f"task.size={self.size} is out of range: there are {least} pairs.")

    def __len__(self) -> int:
        return len(self.rows)

    def question(self, index: int, depth: float, tokenizer: PreTrainedTokenizerBase) -> tuple[str, list[str]]:
        row = self.rows[index]
        others = [pair for pair in row["pairs"] if pair[0] != row["key"]][: self.size - 1]
        others.insert(round(depth * len(others)), [row["key"], row["value"]])
        lines = ",\n ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in others)
        head = "Here is a JSON object. Look up the value of one key in it.\n\n{"
        return f'{head}{lines}}}\n\nThe value of "{row["key"]}" is: "', [row["value"]]


@dataclass(frozen=True)
class Passages:
    """Questions, each with its passage among passages of other questions."""

    rows: Sequence[dict[str, Any]]
    limit: int | None
    size: int
    seed: int
    origin: str

    def __post_init__(self) -> None:
        if self.size > len(self.rows):
            raise UserError(f"task.size={self.size} is out of range: there are {len(self.rows)} passages.")

    def __len__(self) -> int:
        return min(self.limit or len(self.rows), len(self.rows))

    def question(self, index: int, depth: float, tokenizer: PreTrainedTokenizerBase) -> tuple[str, list[str]]:
        row = self.rows[index]
        elsewhere = [i for i in range(len(self.rows)) if i != index]
        chosen = random.Random(f"{self.seed}/{index}").sample(elsewhere, self.size - 1)
        shown = [self.rows[i] for i in chosen]
        shown.insert(round(depth * len(shown)), row)
        documents = "\n".join(
            f"[{number}] {one['title']}: {one['text']}" for number, one in enumerate(shown, start=1)
        )
        head = "Answer the question from these passages. Most of them have nothing to do with it.\n\n"
        return f"{head}{documents}\n\nQuestion: {row['question']}\nAnswer:", list(row["answers"])


def _file(name: str, root: str | None) -> Path:
    if not root or not Path(root).expanduser().is_dir():
        raise UserError(f"data.dir={root} is not a folder: it has to hold {FOLDER}/{FILES[name]}.")
    found = sorted((Path(root).expanduser() / FOLDER).glob(FILES[name]))
    if not found:
        raise UserError(f"data.dir={root} has no {FOLDER}/{FILES[name]} for {name}.")
    return found[0]


def _pairs(row: Any) -> dict[str, Any]:
    """A row of "Lost in the middle": `ordered_kv_records`, `key`, `value`."""
    row = checked(row, {"ordered_kv_records": list, "key": str, "value": str})
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in row["ordered_kv_records"]):
        raise ValueError("ordered_kv_records holds something else than pairs")
    return {"pairs": row["ordered_kv_records"], "key": row["key"], "value": row["value"]}


def _passage(row: Any) -> dict[str, Any]:
    """A row of "Lost in the middle": `question`, `answers`, and its passage first in `ctxs`."""
    row = checked(row, {"question": str, "answers": list, "ctxs": list})
    if not row["ctxs"]:
        raise ValueError("ctxs holds no passage")
    gold = (context for context in row["ctxs"] if isinstance(context, dict) and context.get("isgold"))
    passage = checked(next(gold, row["ctxs"][0]), {"title": str, "text": str})
    return {"question": row["question"], "answers": row["answers"], **passage}


def _draw_pairs(count: int, size: int, seed: int) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        draw = random.Random(f"{seed}/{index}")
        pairs = [[str(uuid.UUID(int=draw.getrandbits(128), version=4)) for _ in range(2)] for _ in range(size)]
        rows.append({"pairs": pairs, "key": pairs[0][0], "value": pairs[0][1]})
    return rows
