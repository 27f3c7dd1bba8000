"""The datasets that are known by name: their splits, and the fields that lm-eval's templates use.

A conversion takes a row with its source's field names, checks it, and returns the row that the task of the
same name in lm-eval 0.4.13 wants. A `ValueError` says what is wrong with the row.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]

RTE_LABELS = ("entailment", "not_entailment")
MATHQA_OPTION = re.compile(r"[abcd] \) .*?, |e \) .*?$")
"""How lm-eval cuts MathQA's `options`. Choices with a comma lose what follows it, and lists keep their quotes
(75 of the 2985 test rows, 126 of the 4475 validation rows); that is left so, to score what lm-eval scores."""


@dataclass(frozen=True)
class Dataset:
    """One benchmark, as `folder` sources store it and as lm-eval reads it."""

    splits: tuple[str, ...]
    """Names in lm-eval's task."""
    fields: dict[str, type]
    """Fields that a source row must have."""
    convert: Callable[[Row], Row]
    """Source row to lm-eval row."""
    folder: str | None = None
    """Name of its folder, if it is not the dataset's."""


def checked(row: Any, fields: dict[str, type]) -> Row:
    """`row` cut down to `fields`.

    Raises:
        ValueError: no JSON object, or a field is missing or of another type.
    """
    if not isinstance(row, dict):
        raise ValueError("the line is no JSON object")
    if missing := [name for name in fields if name not in row]:
        raise ValueError(f"the row lacks {', '.join(missing)} (needed are {', '.join(fields)})")
    for name, kind in fields.items():
        if type(row[name]) is not kind:
            raise ValueError(f"{name} is {row[name]!r}, allowed is a {kind.__name__}")
    return {name: row[name] for name in fields}


def _one_of(row: Row, field: str, allowed: tuple[Any, ...]) -> None:
    if row[field] not in allowed:
        raise ValueError(f"{field} is {row[field]!r}, allowed are {', '.join(map(repr, allowed))}")


def _copa(row: Row) -> Row:
    _one_of(row, "question", ("cause", "effect"))
    _one_of(row, "label", (0, 1))
    return row


def _mathqa(row: Row) -> Row:
    _one_of(row, "correct", ("a", "b", "c", "d", "e"))
    if len(MATHQA_OPTION.findall(row["options"])) != 5:
        raise ValueError(f"options is {row['options']!r}, allowed is 'a ) … , b ) … , c ) … , d ) … , e ) …'")
    return row


def _openbookqa(row: Row) -> Row:
    choices = checked(row["choices"], {"text": list, "label": list})
    if len(choices["text"]) != len(choices["label"]):
        raise ValueError(f"choices has {len(choices['text'])} texts and {len(choices['label'])} labels")
    _one_of(row, "answerKey", tuple(choices["label"]))
    return row | {"choices": choices}


def _piqa(row: Row) -> Row:
    _one_of(row, "label", (0, 1))
    return row


def _rte(row: Row) -> Row:
    sglue = _sglue_rte(row)
    return {"sentence1": sglue["premise"], "sentence2": sglue["hypothesis"], "label": sglue["label"]}


def _sglue_rte(row: Row) -> Row:
    _one_of(row, "label", RTE_LABELS)
    return row | {"label": RTE_LABELS.index(row["label"])}


def _winogrande(row: Row) -> Row:
    _one_of(row, "answer", ("1", "2"))
    if "_" not in row["sentence"]:
        raise ValueError(f"sentence is {row['sentence']!r}, allowed is one with a gap '_'")
    return row


def _xsum(row: Row) -> Row:
    return row


def _cnn_dm(row: Row) -> Row:
    return {"document": row["article"], "summary": row["highlights"]}


_RTE_FIELDS: dict[str, type] = {"premise": str, "hypothesis": str, "label": str}

DATASETS = {
    "copa": Dataset(
        ("train", "validation"),
        {"premise": str, "choice1": str, "choice2": str, "question": str, "label": int},
        _copa,
    ),
    "mathqa": Dataset(("train", "validation", "test"), {"Problem": str, "options": str, "correct": str}, _mathqa),
    "openbookqa": Dataset(
        ("train", "validation", "test"),
        {"question_stem": str, "choices": dict, "answerKey": str},
        _openbookqa,
    ),
    "piqa": Dataset(("train", "validation"), {"goal": str, "sol1": str, "sol2": str, "label": int}, _piqa),
    "rte": Dataset(("train", "validation"), _RTE_FIELDS, _rte),
    "sglue_rte": Dataset(("train", "validation"), _RTE_FIELDS, _sglue_rte, folder="rte"),
    "winogrande": Dataset(
        ("train", "validation"), {"sentence": str, "option1": str, "option2": str, "answer": str}, _winogrande
    ),
    "cnn_dm": Dataset(
        ("train", "validation", "test"), {"article": str, "highlights": str}, _cnn_dm, folder="cnn_dailymail"
    ),
    "xsum": Dataset(("train", "validation", "test"), {"document": str, "summary": str}, _xsum),
}
