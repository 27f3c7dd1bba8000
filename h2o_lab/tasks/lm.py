"""A model under an eviction policy, as lm-eval sees it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from transformers import PreTrainedTokenizerBase

from h2o_lab.errors import UserError
from h2o_lab.progress import progress
from h2o_lab.tasks.scoring import Choice, Score, Scorer


class EvictionLM(TemplateLM):
    """lm-eval's `LM` interface for log-likelihood tasks; the tokens are those of lm-eval's own HFLM.

    After an evaluation, `scores` holds what each request got, by (task, document, index of the choice).

    Args:
        scorer: scores token sequences under a policy.
        tokenizer: the model's.
        add_bos_token: whether the tokenizer adds its special tokens to a context.
    """

    def __init__(self, scorer: Scorer, tokenizer: PreTrainedTokenizerBase, add_bos_token: bool = False) -> None:
        super().__init__()
        self.scorer = scorer
        self.tokenizer = tokenizer
        self.add_bos_token = add_bos_token
        self.scores: dict[tuple[str, int, int], tuple[Choice, Score]] = {}
        self._asked: list[tuple[str, int, int]] = []

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

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        special = self.add_bos_token if add_special_tokens is None else add_special_tokens
        if self.tokenizer.bos_token and string.startswith(self.tokenizer.bos_token):
            special = False
        return self.tokenizer.encode(string, add_special_tokens=special)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        self._asked = [(str(r.task_name), int(r.doc_id), r.idx) for r in requests]
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

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        raise UserError(_only_choices(requests))

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        raise UserError(_only_choices(requests))


def _by_question(
    keyed: list[tuple[tuple[str, int, int], Choice]],
) -> list[list[tuple[tuple[str, int, int], Choice]]]:
    return [list(group) for _, group in groupby(keyed, key=lambda item: item[0][:2])]


def _only_choices(requests: Sequence[Instance]) -> str:
    name = requests[0].task_name if requests else "?"
    return f"task {name} does not score given choices: only lm-eval's multiple-choice tasks can be run."
