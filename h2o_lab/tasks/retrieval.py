"""One fact among many, to be found again: accuracy by depth. This is where eviction hurts."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from transformers import PreTrainedTokenizerBase

from h2o_lab.cells import Journal
from h2o_lab.config import Config, DataConfig, RetrievalConfig
from h2o_lab.errors import UserError
from h2o_lab.policies import Budget, Policy
from h2o_lab.tasks.evaluation import Evaluation, mean_and_error
from h2o_lab.tasks.generation import Sampling, check_generates, generate_all
from h2o_lab.tasks.haystacks import HAYSTACKS, Facts, load_facts
from h2o_lab.tasks.prompts import encode
from h2o_lab.tasks.reader import Reader

if TYPE_CHECKING:
    from h2o_lab.checks import Plan
    from h2o_lab.models import LoadedModel
    from h2o_lab.stats import Recorder


def check(task: RetrievalConfig, data: DataConfig, policy: Policy, prefill: str = "evict") -> None:
    """Read the facts, where they come from files.

    Raises:
        UserError: a setting is out of its range, the policy cannot generate, or the facts cannot be had.
    """
    from h2o_lab.checks import at_least

    if task.name not in HAYSTACKS:
        raise UserError(f"task.name={task.name} is no retrieval task: it must be one of {', '.join(HAYSTACKS)}.")
    at_least("task.size", task.size, 1)
    at_least("task.max_new_tokens", task.max_new_tokens, 1)
    at_least("task.data_seed", task.data_seed, 0)
    if not task.depths or not all(0 <= depth <= 1 for depth in task.depths):
        raise UserError(f"task.depths={list(task.depths)} is out of range: depths must be in [0, 1], one at least.")
    check_generates(policy)
    load(task, data)


def load(task: RetrievalConfig, data: DataConfig) -> Facts:
    """The facts of as many questions as asked for.

    Raises:
        UserError: they cannot be had.
    """
    return load_facts(task, data)


def content(facts: Facts, task: RetrievalConfig) -> Any:
    """The rows or seeds that the questions are made of."""
    return [type(facts).__name__, asdict(cast(Any, facts)) | {"origin": None}]


def run(
    facts: Facts,
    cfg: Config,
    plan: Plan,
    loaded: LoadedModel,
    journal: Journal,
    recorder: Recorder | None = None,
) -> Evaluation:
    """Evaluate one cell."""
    reader = Reader.of(cfg, plan, loaded, journal, recorder)
    return evaluate(facts, cast(RetrievalConfig, cfg.task), plan.budget, reader, loaded.tokenizer)


def evaluate(
    facts: Facts, task: RetrievalConfig, budget: Budget | None, reader: Reader, tokenizer: PreTrainedTokenizerBase
) -> Evaluation:
    """Ask every question at every depth; an answer counts if one of the right ones stands in what was generated."""
    asked = [
        (depth, index, *facts.question(index, depth, tokenizer))
        for depth in task.depths
        for index in range(len(facts))
    ]
    prompts = [encode(tokenizer, prompt, task.chat)[1] for _, _, prompt, _ in asked]
    found = generate_all(
        reader,
        tokenizer,
        prompts,
        budget,
        Sampling(task.max_new_tokens),
        batch_tokens=task.batch_tokens,
        label="asking",
    )
    samples: list[dict[str, Any]] = []
    for (depth, index, _, answers), tokens, result, k in zip(
        asked, prompts, found.results, found.caps, strict=True
    ):
        right = any(_plain(answer) in _plain(result.text) for answer in answers)
        samples.append(
            {
                "doc_id": index,
                "depth": depth,
                "answers": answers,
                "text": result.text,
                "right": float(right),
                "prompt_tokens": len(tokens),
                "k": k,
                "kv_bytes": result.kv_bytes,
            }
        )
    return found.evaluation(_metrics(samples, task), samples, facts.origin, reader.tokens)


def _metrics(samples: list[dict[str, Any]], task: RetrievalConfig) -> dict[str, float]:
    metrics = mean_and_error("accuracy", [sample["right"] for sample in samples])
    for depth in task.depths:
        at_depth = [sample["right"] for sample in samples if sample["depth"] == depth]
        metrics |= mean_and_error(f"accuracy_at_{depth:g}", at_depth)
    return metrics


def _plain(text: str) -> str:
    """Lower case, single spaces: how answers are compared (Liu et al. 2023)."""
    return " ".join(text.lower().split())
