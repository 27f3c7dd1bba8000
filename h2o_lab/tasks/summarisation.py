"""Summaries written under a policy: ROUGE, Self-BLEU, repetition, and every text that was generated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from transformers import PreTrainedTokenizerBase

from h2o_lab.cells import Journal
from h2o_lab.config import Config, DataConfig, SummarisationConfig
from h2o_lab.errors import UserError
from h2o_lab.policies import Budget, Policy
from h2o_lab.tasks.evaluation import Evaluation, mean_and_error
from h2o_lab.tasks.generation import Generations, Sampling, check_generates, generate_all
from h2o_lab.tasks.prompts import Prompt, Template, draw_examples
from h2o_lab.tasks.reader import Reader
from h2o_lab.tasks.text_metrics import ROUGE, distinct, repetition, rouge, self_bleu, words

if TYPE_CHECKING:
    from h2o_lab.checks import Plan
    from h2o_lab.models import LoadedModel
    from h2o_lab.stats import Recorder

LEVEL = 0.95
"""Of the bootstrap confidence intervals."""


@dataclass(frozen=True)
class Documents:
    """Rows to summarise, rows to take examples from, and where both come from."""

    rows: list[dict[str, Any]]
    pool: list[dict[str, Any]]
    origin: str


def check(task: SummarisationConfig, data: DataConfig, policy: Policy, prefill: str = "evict") -> None:
    """Read the rows, where they are ours to read.

    Raises:
        UserError: a setting is out of its range, the policy cannot generate, or the rows cannot be had.
    """
    from h2o_lab.checks import at_least

    for key in ("num_fewshot", "fewshot_seed", "sampling_seed"):
        at_least(f"task.{key}", getattr(task, key), 0)
    for key in ("document_words", "context", "self_bleu_texts"):
        at_least(f"task.{key}", getattr(task, key), 1)
    _template(task, None)
    _sampling(task)
    check_generates(policy)
    if data.source != "hub":
        load(task, data)


def load(task: SummarisationConfig, data: DataConfig) -> Documents:
    """Test rows, or validation rows where there are none; examples from the other split, else rows set aside.

    Raises:
        UserError: the rows cannot be had, or there are fewer examples than asked for.
    """
    from h2o_lab.data import load_documents

    rows = load_documents(task.name, data)
    splits = dict(rows.splits)
    asked = next((name for name in ("test", "validation") if name in splits), None)
    if asked is None:
        raise UserError(f"{rows.origin} has no split to evaluate: {task.name} needs test or validation rows.")
    chosen = splits.pop(asked)
    pool = splits.get("train") or splits.get("validation") or []
    if not all({"document", "summary"} <= row.keys() for row in [*chosen, *pool]):
        raise UserError(f"{rows.origin} has rows without document or summary: {task.name} cannot be summarised.")
    if task.num_fewshot and not pool:
        aside = len(chosen) // 4
        chosen, pool = chosen[: len(chosen) - aside], chosen[len(chosen) - aside :]
    if task.num_fewshot > len(pool):
        raise UserError(
            f"task.num_fewshot={task.num_fewshot} asks for more examples than the {len(pool)} of {rows.origin}."
        )
    return Documents(chosen[: task.limit], pool, f"{rows.origin}, split {asked}")


def content(documents: Documents, task: SummarisationConfig) -> Any:
    """The documents, and those that examples are drawn from."""
    return [documents.rows, documents.pool if task.num_fewshot else []]


def run(
    documents: Documents,
    cfg: Config,
    plan: Plan,
    loaded: LoadedModel,
    journal: Journal,
    recorder: Recorder | None = None,
) -> Evaluation:
    """Summarise every document, with its prompt read as `prefill` says."""
    task = cast(SummarisationConfig, cfg.task)
    reader = Reader.of(cfg, plan, loaded, journal, recorder)
    return evaluate(documents, task, plan.budget, reader, loaded.tokenizer)


def evaluate(
    documents: Documents,
    task: SummarisationConfig,
    budget: Budget | None,
    reader: Reader,
    tokenizer: PreTrainedTokenizerBase,
) -> Evaluation:
    """Summarise every document under the reader's policy."""
    template, sampling = _template(task, _context(task, reader)), _sampling(task)
    prompts = [
        template.build(
            tokenizer,
            row,
            draw_examples(documents.pool, task.num_fewshot, task.fewshot_seed, index),
            task.max_new_tokens,
            f"{task.name} document {index}",
        )
        for index, row in enumerate(documents.rows)
    ]
    found = generate_all(
        reader,
        tokenizer,
        [prompt.tokens for prompt in prompts],
        budget,
        sampling,
        batch_tokens=task.batch_tokens,
        label="summarising",
    )
    samples = _samples(documents, prompts, found)
    shots = {"examples": task.num_fewshot, "seed": task.fewshot_seed}
    return found.evaluation(_metrics(samples, task), samples, documents.origin, reader.tokens, {"fewshot": shots})


def _template(task: SummarisationConfig, context: int | None) -> Template:
    return Template(task.prompt, task.example, task.document_words, task.chat, context, task.too_long)


def _sampling(task: SummarisationConfig) -> Sampling:
    return Sampling(task.max_new_tokens, task.temperature, task.top_p, tuple(task.stop), task.sampling_seed)


def _context(task: SummarisationConfig, reader: Reader) -> int | None:
    """The context asked for, or the model's own."""
    own = getattr(reader.model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return task.context if task.context is not None else own


def _samples(documents: Documents, prompts: list[Prompt], found: Generations) -> list[dict[str, Any]]:
    scores = rouge([row["summary"] for row in documents.rows], [result.text.strip() for result in found.results])
    return [
        {
            "doc_id": index,
            "reference": row["summary"],
            "text": result.text,
            "ended_by": result.ended_by,
            "tokens": len(result.tokens),
            "words": len(words(result.text)),
            "repetition": repetition(result.text),
            **score,
            "prompt_tokens": len(prompt.tokens),
            "truncated": prompt.truncated,
            "k": k,
            "kv_bytes": result.kv_bytes,
        }
        for index, (row, prompt, result, score, k) in enumerate(
            zip(documents.rows, prompts, found.results, scores, found.caps, strict=True)
        )
    ]


def _metrics(samples: list[dict[str, Any]], task: SummarisationConfig) -> dict[str, float]:
    texts = [sample["text"] for sample in samples][: task.self_bleu_texts]
    metrics: dict[str, float] = {}
    for name in (ROUGE[1], ROUGE[0], ROUGE[2]):
        values = [sample[name] for sample in samples]
        metrics |= mean_and_error(name, values) | _interval(name, values, task.fewshot_seed)
    return metrics | {
        "self_bleu": self_bleu(texts),
        "distinct_1": distinct(texts, 1),
        "distinct_2": distinct(texts, 2),
        **mean_and_error("repetition", [sample["repetition"] for sample in samples]),
        **mean_and_error("tokens", [float(sample["tokens"]) for sample in samples]),
    }


def _interval(name: str, values: list[float], seed: int) -> dict[str, float]:
    """The 95 % bootstrap interval of the mean, by percentiles (scipy)."""
    import numpy as np
    from scipy.stats import bootstrap

    if len(set(values)) < 2:
        return {}
    found = bootstrap(
        (np.array(values),), np.mean, confidence_level=LEVEL, method="percentile", batch=100, random_state=seed
    ).confidence_interval
    return {f"{name}_low": float(found.low), f"{name}_high": float(found.high)}
