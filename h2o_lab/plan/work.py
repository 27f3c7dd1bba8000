"""What the model will be given: the real prompts and texts of a task, in the tokens of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from itertools import groupby
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from h2o_lab.config import (
    HarnessConfig,
    ModelConfig,
    PerplexityConfig,
    RetrievalConfig,
    SummarisationConfig,
    TaskConfig,
)
from h2o_lab.errors import UserError
from h2o_lab.models.sources import label, located
from h2o_lab.policies import Full
from h2o_lab.tasks.prompts import Template, draw_examples, encode
from h2o_lab.tasks.scoring import Score, Scorer
from h2o_lab.tasks.units import Choice

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

Tokens = Sequence[int]


@dataclass(frozen=True)
class Questions:
    """Choices to be scored, by question; `rolling` for whole texts in windows, whose budget counts the window."""

    questions: list[list[Choice]]
    rolling: bool = False


@dataclass(frozen=True)
class Prompts:
    """Prompts to be continued by at most `new_tokens` tokens."""

    prompts: list[Tokens]
    new_tokens: int


@dataclass(frozen=True)
class Texts:
    """Texts to be predicted."""

    texts: list[Tokens]


@dataclass(frozen=True)
class Work:
    """What a task gives to a model.

    Attributes:
        parts: what was looked at; each is batched by itself.
        looked_at: how many questions, documents or texts that are.
        total: how many there are.
    """

    parts: list[Questions | Prompts | Texts]
    looked_at: int
    total: int


def stand_in(config: PretrainedConfig) -> Any:
    """A model in all but its weights, for code that asks it for its configuration."""
    return SimpleNamespace(config=config)


def load_tokenizer(cfg: ModelConfig) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, without its weights.

    Raises:
        UserError: it cannot be found or read.
    """
    from transformers import AutoTokenizer

    with located(cfg, check=[]) as (where, options):
        try:
            return AutoTokenizer.from_pretrained(where, **options)
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = " ".join(str(error).split(". ")[0].split()).rstrip(".")
            raise UserError(f"the tokenizer of {label(cfg)} cannot be read ({reason}).") from error


def work_of(
    data: Any, task: TaskConfig, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, most: int | None
) -> Work:
    """What a task gives to a model.

    Args:
        data: as the task's kind loads it.
        task: its configuration.
        config: the model's.
        tokenizer: the model's.
        most: look at this many questions or documents, from the first; None for all. Texts are read whole.

    Raises:
        UserError: a prompt does not fit the model's context.
    """
    return READERS[task.kind](data, task, config, tokenizer, most)


class _Recorder(Scorer):
    """Remembers what it is asked to score."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(stand_in(config), Full(), None)
        self.asked: list[list[list[Choice]]] = []

    def score(
        self, questions: Sequence[Sequence[Choice]], advance: Callable[[int], None] = lambda choices: None
    ) -> list[list[Score]]:
        self.asked.append([list(choices) for choices in questions])
        return [[Score(0.0, False, 1, 0, False, 0) for _ in choices] for choices in questions]


def _harness(
    data: Any, task: HarnessConfig, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, most: int | None
) -> Work:
    """The requests that lm-eval builds, as the model's side of it tokenises them."""
    from h2o_lab.tasks.lm import EvictionLM

    total = min(task.limit or len(data.task.eval_docs), len(data.task.eval_docs))
    looked_at = min(most or total, total)
    data.task.set_config(key="num_fewshot", value=task.num_fewshot)
    data.task.set_fewshot_seed(seed=task.fewshot_seed)
    with redirect_stderr(StringIO()):
        data.task.build_all_requests(limit=looked_at, rank=0, world_size=1)
    recorder = _Recorder(config)
    lm = EvictionLM(recorder, tokenizer, task.add_bos_token)
    requests = [request for request in data.task.instances for _ in range(request.repeats)]
    parts: list[Questions | Prompts | Texts] = []
    for kind, chosen in groupby(sorted(requests, key=lambda r: r.request_type), key=lambda r: r.request_type):
        if kind == "generate_until":
            parts += _continued(list(chosen), lm)
            continue
        recorder.asked.clear()
        getattr(lm, kind)(list(chosen))
        parts += [Questions(asked, rolling=kind == "loglikelihood_rolling") for asked in recorder.asked]
    return Work(parts, looked_at, total)


def _continued(requests: list[Any], lm: Any) -> list[Prompts]:
    """lm-eval's prompts; what is too long loses its beginning."""
    from h2o_lab.tasks.lm import MAX_NEW_TOKENS

    by_settings: dict[str, list[Any]] = {}
    for request in requests:
        by_settings.setdefault(repr(request.args[1]), []).append(request)
    parts = []
    for members in by_settings.values():
        new = int(members[0].args[1].get("max_gen_toks", MAX_NEW_TOKENS))
        room = lm.max_length - new
        if room < 1:
            raise UserError(
                f"task {members[0].task_name} asks for {new} new tokens and the model's context has "
                f"{lm.max_length}."
            )
        prompts = [lm.tok_encode(request.args[0])[-room:] or [lm.prefix_token_id] for request in members]
        parts.append(Prompts(prompts, new))
    return parts


def _summarisation(
    data: Any,
    task: SummarisationConfig,
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    most: int | None,
) -> Work:
    own = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    context = task.context if task.context is not None else own
    template = Template(task.prompt, task.example, task.document_words, task.chat, context, task.too_long)
    rows = data.rows[:most]
    prompts = [
        template.build(
            tokenizer,
            row,
            draw_examples(data.pool, task.num_fewshot, task.fewshot_seed, index),
            task.max_new_tokens,
            f"{task.name} document {index}",
        ).tokens
        for index, row in enumerate(rows)
    ]
    return Work([Prompts(list(prompts), task.max_new_tokens)], len(rows), len(data.rows))


def _retrieval(
    data: Any, task: RetrievalConfig, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase, most: int | None
) -> Work:
    each = min(max(1, most // len(task.depths)), len(data)) if most is not None else len(data)
    prompts = [
        encode(tokenizer, data.question(index, depth, tokenizer)[0], task.chat)[1]
        for depth in task.depths
        for index in range(each)
    ]
    return Work([Prompts(list(prompts), task.max_new_tokens)], len(prompts), len(task.depths) * len(data))


def _perplexity(
    data: Any,
    task: PerplexityConfig,
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    most: int | None,
) -> Work:
    texts = [tokenizer(text.text, add_special_tokens=False).input_ids[: task.tokens] for text in data.texts]
    for ids, text in zip(texts, data.texts, strict=True):
        if len(ids) < 2:
            raise UserError(f"text {text.title!r} has {len(ids)} tokens: 2 are needed to predict one.")
    return Work([Texts(texts)], len(texts), len(texts))


READERS: dict[str, Callable[[Any, Any, Any, Any, int | None], Work]] = {
    "harness": _harness,
    "summarisation": _summarisation,
    "retrieval": _retrieval,
    "perplexity": _perplexity,
}
"""By the kinds of `h2o_lab.tasks.kinds`."""
