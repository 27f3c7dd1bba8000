"""Which tokens a text's heavy hitters are: their kind, their place, how often they occur with others."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KINDS = ("first token", "sentence start", "punctuation", "word start", "word part", "space")
ENDS = (".", "!", "?")
SPACES = ("Ġ", "▁")
"""How byte-level and SentencePiece vocabularies write a space."""
PART = "\ufffd"
"""What a part of a letter is decoded to."""


def readable(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """A token of a vocabulary as text, its leading space included."""
    text = str(tokenizer.decode([token]))
    stored = str(tokenizer.convert_ids_to_tokens(token))
    return f" {text}" if stored.startswith(SPACES) and not text[:1].isspace() else text


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
        punctuation = bool(text) and all(map(_is_mark, text))
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


def _is_mark(letter: str) -> bool:
    return letter != PART and unicodedata.category(letter)[0] in "PS"
