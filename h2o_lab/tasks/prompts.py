"""Prompts of a document, with worked examples before it, that fit a model's context."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from h2o_lab.errors import UserError


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model gets it: its text, its tokens, and whether the document was shortened to fit."""

    text: str
    tokens: tuple[int, ...]
    truncated: bool


@dataclass(frozen=True)
class Template:
    """How a row becomes a prompt.

    Attributes:
        question: text with `{document}`, put after the examples.
        answer: text with `{summary}`, put behind the question of an example.
        words: most words of a document; None for all.
        chat: whether the model's chat template is put around it.
        context: most tokens of prompt and answer together; None for no limit.
        too_long: `refuse` or `truncate` (the document loses its end) where a prompt does not fit.
    """

    question: str
    answer: str
    words: int | None
    chat: bool
    context: int | None
    too_long: str

    def __post_init__(self) -> None:
        if "{document}" not in self.question or "{summary}" not in self.answer:
            raise UserError("task.prompt must hold {document}, and task.example {summary}.")
        if self.too_long not in ("refuse", "truncate"):
            raise UserError(f"task.too_long={self.too_long} is unknown: it must be refuse or truncate.")

    def build(
        self,
        tokenizer: PreTrainedTokenizerBase,
        row: dict[str, Any],
        examples: Sequence[dict[str, Any]],
        room: int,
        place: str,
    ) -> Prompt:
        """The prompt of a row.

        Args:
            tokenizer: the model's.
            row: with `document`.
            examples: rows with `document` and `summary`.
            room: tokens to leave for the answer.
            place: names the row in an error.

        Raises:
            UserError: it does not fit the context, and is not to be shortened, or its examples alone do not fit.
        """
        head = "".join(
            self._fill(example["document"]) + self.answer.replace("{summary}", example["summary"])
            for example in examples
        )
        whole = self._prompt(tokenizer, head, self._shorten(row["document"]), truncated=False)
        if self.context is None or len(whole.tokens) + room <= self.context:
            return whole
        if self.too_long == "refuse":
            raise UserError(
                f"{place} needs {len(whole.tokens)} tokens and {room} to answer, and the context has "
                f"{self.context}: use task.too_long=truncate, fewer task.num_fewshot, or a smaller "
                "task.document_words."
            )
        words = self._shorten(row["document"]).split()

        def first(count: int) -> Prompt:
            return self._prompt(tokenizer, head, " ".join(words[:count]), truncated=True)

        # the most words that fit
        counts = range(len(words) + 1)
        fitting = bisect_right(counts, self.context - room, key=lambda count: len(first(count).tokens))
        if not fitting:
            raise UserError(f"the examples of {place} alone exceed the context of {self.context} tokens.")
        return first(fitting - 1)

    def _prompt(self, tokenizer: PreTrainedTokenizerBase, head: str, document: str, truncated: bool) -> Prompt:
        text, tokens = encode(tokenizer, head + self._fill(document), self.chat)
        return Prompt(text, tuple(tokens), truncated)

    def _fill(self, document: str) -> str:
        return self.question.replace("{document}", self._shorten(document))

    def _shorten(self, document: str) -> str:
        words = document.split()
        return document if self.words is None or len(words) <= self.words else " ".join(words[: self.words])


def encode(tokenizer: PreTrainedTokenizerBase, text: str, chat: bool) -> tuple[str, list[int]]:
    """The text as the model gets it, with its chat template around it where asked for, and its tokens.

    Raises:
        UserError: there is no chat template.
    """
    if chat:
        if not tokenizer.chat_template:
            raise UserError("task.chat=true is impossible: the model's tokenizer has no chat template.")
        messages = [{"role": "user", "content": text}]
        text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    return text, list(tokenizer.encode(text, add_special_tokens=False))


def draw_examples(pool: Sequence[dict[str, Any]], count: int, seed: int, index: int) -> list[dict[str, Any]]:
    """Worked examples for the row of this index, at most as many as the pool has: drawn anew, reproducibly."""
    return random.Random(f"{seed}/{index}").sample(list(pool), count)
