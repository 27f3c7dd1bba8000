"""Which tokens a text's heavy hitters are: their kind, their place, how often they occur with others."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

KINDS = ("first token", "sentence start", "punctuation", "word start", "word part", "space")
ENDS = (".", "!", "?")
MARKS = {"Ġ": " ", "▁": " ", "Ċ": "\n", "ĉ": "\t"}
"""How byte-level and SentencePiece vocabularies write a space, a newline and a tab."""


def readable(token: str) -> str:
    """A token of a vocabulary as text, its leading space included."""
    for mark, text in MARKS.items():
        token = token.replace(mark, text)
    return "\n" if token == "<0x0A>" else token


def kinds_of(tokens: Sequence[str]) -> NDArray[np.int64]:
    """For each token of a text the index of its kind in `KINDS`.

    `sentence start` is the first word after a full stop, an exclamation or question mark, or a line break.

    Args:
        tokens: as `readable` gives them.
    """
    found = np.empty(len(tokens), np.int64)
    fresh = False
    for place, token in enumerate(tokens):
        text = token.strip()
        punctuation = bool(text) and all(unicodedata.category(letter)[0] in "PS" for letter in text)
        if place == 0:
            kind = "first token"
        elif not text:
            kind = "space"
        elif punctuation:
            kind = "punctuation"
        elif fresh:
            kind = "sentence start"
        else:
            kind = "word start" if token[0].isspace() else "word part"
        found[place] = KINDS.index(kind)
        if "\n" in token or (punctuation and text.endswith(ENDS)):
            fresh = True
        elif text and not punctuation:
            fresh = False
    return found


def neighbours(ids: Sequence[int], window: int) -> NDArray[np.int64]:
    """For each token of a text, how many different other tokens of the vocabulary stand within `window` of it."""
    return np.array(
        [len(set(ids[max(0, place - window) : place + window + 1]) - {token}) for place, token in enumerate(ids)],
        np.int64,
    )
