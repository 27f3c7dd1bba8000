"""A model under an eviction policy, as lm-eval sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from transformers import PreTrainedTokenizerBase

from h2o_lab.errors import UserError
from h2o_lab.progress import progress
from h2o_lab.tasks.generation import Generated, Generations, Sampling, check_generates, generate_all
from h2o_lab.tasks.scoring import Score, Scorer
from h2o_lab.tasks.units import Choice

Key = tuple[str, int, int]
"""Task, document, index of the request."""
CONTEXT = 2048
"""Tokens of a window where a model does not say its own limit."""
MAX_NEW_TOKENS = 256
"""lm-eval's own default."""


class EvictionLM(TemplateLM):
    """lm-eval's `LM` interface; the tokens are those of lm-eval's own HFLM.

    Args:
        scorer: scores token sequences under a policy; its reader generates.
        tokenizer: the model's.
        add_bos_token: whether the tokenizer adds its special tokens to a context.

    Attributes:
        scores: what each request to score got; all windows of a rolling text in the order of their reading.
        generated: what each request to generate got, and its budget k.
        generations: sums over all generation.
    """

    def __init__(self, scorer: Scorer, tokenizer: PreTrainedTokenizerBase, add_bos_token: bool = False) -> None:
        super().__init__()
        self.scorer = scorer
        self.tokenizer = tokenizer
        self.add_bos_token = add_bos_token
        self.scores: dict[Key, tuple[Choice, Score]] = {}
        self.generated: dict[Key, tuple[Generated, int]] = {}
        self.generations: list[Generations] = []
        self._asked: list[Key] = []

    @property
    def eot_token_id(self) -> int:
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        bos = self.tokenizer.bos_token_id
        return bos if bos is not None else self.eot_token_id

    @property
    def tokenizer_name(self) -> str:
        return self.tokenizer.name_or_path.replace("/", "__")

    @property
    def max_length(self) -> int:
        """Tokens of a window, and of a prompt with its answer."""
        text = self.scorer.model.config.get_text_config(decoder=True)
        return getattr(text, "max_position_embeddings", None) or CONTEXT

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        special = self.add_bos_token if add_special_tokens is None else add_special_tokens
        if self.tokenizer.bos_token and string.startswith(self.tokenizer.bos_token):
            special = False
        return self.tokenizer.encode(string, add_special_tokens=special)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        self._asked = [_key(request) for request in requests]
        return super().loglikelihood(requests, disable_tqdm=True)

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        choices = [Choice(tuple(context), tuple(continuation)) for _, context, continuation in requests]
        for key, choice in zip(self._asked, choices, strict=True):
            if not choice.continuation:
                raise UserError(f"task {key[0]}, question {key[1]}: choice {key[2]} has no tokens to score.")
        questions = _by_question(list(zip(self._asked, choices, strict=True)))
        with progress("scoring", total=len(choices), unit="choices") as advance:
            scored = self.scorer.score([[choice for _, choice in question] for question in questions], advance)
        for question, scores in zip(questions, scored, strict=True):
            for (key, choice), score in zip(question, scores, strict=True):
                self.scores[key] = (choice, score)
        return [(self.scores[key][1].logprob, self.scores[key][1].greedy) for key in self._asked]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Whole texts in disjoint windows, each read anew; a fractional budget counts the window's tokens."""
        given = self.scorer.budget
        if given is not None and given.fraction is not None:
            self.scorer.budget = replace(given, base="sequence")
        try:
            return self._roll(requests)
        finally:
            self.scorer.budget = given

    def _roll(self, requests: list[Instance]) -> list[float]:
        totals = []
        with progress("scoring", total=len(requests), unit="texts") as advance:
            for request in requests:
                windows = get_rolling_token_windows(
                    self.tok_encode(request.args[0]), self.prefix_token_id, self.max_length, context_len=1
                )
                choices = [Choice(*map(tuple, make_disjoint_window(window))) for window in windows]
                scores = [score[0] for score in self.scorer.score([[choice] for choice in choices])]
                task, document, _ = _key(request)
                pairs = zip(choices, scores, strict=True)
                self.scores |= {(task, document, index): pair for index, pair in enumerate(pairs)}
                totals.append(sum(score.logprob for score in scores))
                advance(1)
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Continue prompts; a prompt that is too long loses its beginning, as with lm-eval's HFLM."""
        check_generates(self.scorer.policy)
        texts: dict[int, str] = {}
        order = sorted(range(len(requests)), key=lambda i: repr(requests[i].args[1]))
        for _, group in groupby(order, key=lambda i: repr(requests[i].args[1])):
            members = list(group)
            sampling = _sampling(requests[members[0]].args[1], self.scorer.seed)
            room = self.max_length - sampling.max_new_tokens
            if room < 1:
                raise UserError(
                    f"task {requests[0].task_name} asks for {sampling.max_new_tokens} new tokens and the model's "
                    f"context has {self.max_length}."
                )
            prompts = [self.tok_encode(requests[i].args[0])[-room:] or [self.prefix_token_id] for i in members]
            found = generate_all(
                self.scorer.reader,
                self.tokenizer,
                prompts,
                self.scorer.budget,
                sampling,
                batch_tokens=self.scorer.batch_tokens,
                label="generating",
            )
            self.generations.append(found)
            for i, result, k in zip(members, found.results, found.caps, strict=True):
                texts[i] = result.text
                self.generated[_key(requests[i])] = (result, k)
        return [texts[i] for i in range(len(requests))]


def _key(request: Instance) -> Key:
    return str(request.task_name), int(request.doc_id), request.idx  # type: ignore[arg-type]


def _sampling(kwargs: dict[str, Any], seed: int) -> Sampling:
    """lm-eval's generation settings in our words; greedy unless they ask for samples."""
    until = kwargs.get("until") or []
    temperature = float(kwargs.get("temperature") or 0.0) if kwargs.get("do_sample", True) else 0.0
    return Sampling(
        int(kwargs.get("max_gen_toks", MAX_NEW_TOKENS)),
        temperature,
        float(kwargs.get("top_p", 1.0)),
        tuple([until] if isinstance(until, str) else until),
        seed,
    )


def _by_question(keyed: Sequence[tuple[Key, Choice]]) -> list[list[tuple[Key, Choice]]]:
    return [list(group) for _, group in groupby(keyed, key=lambda item: item[0][:2])]
