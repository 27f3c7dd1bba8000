"""Tasks of lm-eval, with its own definitions, prompts and metrics, on the rows of a chosen source."""

from __future__ import annotations

import logging
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from inspect import getsource, isfunction
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from h2o_lab.cells import Journal, fingerprint_files
from h2o_lab.config import Config, DataConfig, HarnessConfig
from h2o_lab.errors import UserError
from h2o_lab.tasks.evaluation import Evaluation, mean_and_error
from h2o_lab.tasks.scoring import Scorer

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

    from h2o_lab.checks import Plan
    from h2o_lab.data import Rows
    from h2o_lab.models import LoadedModel
    from h2o_lab.policies import Policy
    from h2o_lab.stats import Recorder
    from h2o_lab.tasks.lm import EvictionLM

POOL = 200
"""Rows set aside for few-shot examples where a source has no split to take them from (a quarter at most)."""
BOOTSTRAP = 1000
FOLDERS = {
    "copa": "super_glue/copa",
    "mathqa": "mathqa",
    "openbookqa": "openbookqa",
    "piqa": "piqa",
    "rte": "glue/rte",
    "sglue_rte": "super_glue/rte",
    "winogrande": "winogrande",
}
"""Where lm-eval defines the paper's tasks: reading one folder takes milliseconds, reading all takes seconds."""
NO_DEFINITION = ("custom_dataset", "dataset_path", "dataset_kwargs", "metadata", "num_fewshot")
"""Keys of lm-eval's definition that say where rows lie, or are in our own configuration."""
FEWSHOT = ("sampled", "fixed")
METRICS = ("acc", "acc_norm", "exact_match", "f1", "mcc")


@dataclass(frozen=True)
class TaskData:
    """A task ready to be evaluated.

    Attributes:
        task: lm-eval's task object.
        origin: where the rows come from.
        fewshot_from: where the worked examples come from.
    """

    task: Any
    origin: str
    fewshot_from: str


@cache
def task_manager(name: str, include_path: str | None) -> TaskManager:
    """lm-eval's index of task definitions, of the folder that has `name` where that is known."""
    import lm_eval.tasks

    if include_path is None and name in FOLDERS:
        folder = Path(lm_eval.tasks.__file__).parent / FOLDERS[name]
        return lm_eval.tasks.TaskManager(include_path=str(folder), include_defaults=False)
    return lm_eval.tasks.TaskManager(include_path=include_path)


def check(task: HarnessConfig, data: DataConfig, policy: Policy, prefill: str = "evict") -> None:
    """Read the rows, where they are ours to read.

    Raises:
        UserError: a setting is out of its range, or the rows cannot be had.
    """
    from h2o_lab.checks import at_least
    from h2o_lab.data import load_rows

    at_least("task.num_fewshot", task.num_fewshot, 0)
    if task.fewshot not in FEWSHOT:
        raise UserError(f"task.fewshot={task.fewshot} is unknown: it must be one of {', '.join(FEWSHOT)}.")
    if task.fewshot == "fixed" and task.fewshot_seed:
        raise UserError(
            f"task.fewshot_seed={task.fewshot_seed} draws nothing with task.fewshot=fixed, which takes the first "
            "examples: leave it out."
        )
    rows = load_rows(task.name, data) if not task.include_path else None
    if rows is not None:
        _splits(rows, task)


def load(task: HarnessConfig, data: DataConfig) -> TaskData:
    """Build lm-eval's task on the rows of the chosen source.

    Raises:
        UserError: the task is unknown, or its data cannot be had.
    """
    from h2o_lab.data import load_rows

    rows = load_rows(task.name, data) if not task.include_path else None
    _quiet()
    if rows is None:
        origin = f"the definition in {task.include_path}" if task.include_path else "hub"
        built, examples = _build(task, {}), "the task's own split"
    else:
        splits = _splits(rows, task)
        built, origin, examples = _build(task, _from_rows(splits)), splits.origin, splits.examples
    if task.fewshot == "fixed" and task.num_fewshot:
        _fix_examples(built, task)
    return TaskData(built, origin, examples if task.num_fewshot else "no examples")


def _build(task: HarnessConfig, overrides: dict[str, Any]) -> Any:
    from lm_eval.tasks._factory import TaskFactory

    from h2o_lab.data import data_access

    manager = task_manager(task.name, task.include_path)
    if task.name not in manager.all_subtasks:
        close = [name for name in manager.all_subtasks if task.name in name][:5]
        hint = f"; names like it: {', '.join(close)}" if close else ""
        raise UserError(f"task.name={task.name} is not an lm-eval task{hint}.")
    entry = manager.task_index[task.name]
    with nullcontext() if overrides else data_access(task.name):
        return TaskFactory().build(entry, overrides=overrides, registry=manager.task_index)


def _fix_examples(built: Any, task: HarnessConfig) -> None:
    """The first examples for every question (but a question itself, where it stands among them).

    Raises:
        UserError: there are fewer than asked for, or the task has a way of its own.
    """
    from lm_eval.api.samplers import get_sampler

    if not hasattr(built, "sampler"):
        raise UserError(f"task.fewshot=fixed cannot be: {task.name} chooses its examples by code of its own.")
    examples = list(built.fewshot_docs())
    enough = len(examples) - (built.fewshot_cfg.split == built.config.test_split)
    if task.num_fewshot > enough:
        raise UserError(
            f"task.num_fewshot={task.num_fewshot} asks for more examples than the {enough} of {task.name}."
        )
    built.sampler = get_sampler("first_n")(examples)


@dataclass(frozen=True)
class _Splits:
    """Rows by split, which one is asked, and in words where it and the worked examples (`train`) come from."""

    rows: dict[str, list[dict[str, Any]]]
    asked: str
    origin: str
    examples: str


def _splits(rows: Rows, task: HarnessConfig) -> _Splits:
    """Test rows, or validation rows where there are none; examples from another split, else rows set aside.

    Raises:
        UserError: there are no rows to evaluate, or fewer examples than asked for.
    """
    splits = dict(rows.splits)
    asked = next((name for name in ("test", "validation") if name in splits), None)
    if asked is None:
        raise UserError(f"{rows.origin} has no split to evaluate: {task.name} needs test or validation rows.")
    origin = f"{rows.origin}, split {asked}"
    if "train" in splits:
        examples = "split train"
    elif asked == "test" and "validation" in splits:
        splits["train"], examples = splits["validation"], "split validation (not evaluated)"
    else:
        whole = splits[asked]
        aside = min(POOL, len(whole) // 4)
        splits["train"], splits[asked] = whole[len(whole) - aside :], whole[: len(whole) - aside]
        examples = f"the last {aside} rows of split {asked} (set aside, not evaluated)"
        origin += f" less its last {aside} rows"
    if task.num_fewshot > len(splits["train"]):
        raise UserError(
            f"task.num_fewshot={task.num_fewshot} asks for more examples than there are: {examples} "
            f"has {len(splits['train'])}."
        )
    return _Splits(splits, asked, origin, examples)


def _from_rows(splits: _Splits) -> dict[str, Any]:
    """Overrides that put our rows under lm-eval's task."""
    from datasets import Dataset, DatasetDict

    tables = DatasetDict({name: Dataset.from_list(part) for name, part in splits.rows.items() if part})
    pool = "train" if "train" in tables else None
    names = {"training_split": pool, "fewshot_split": pool, "validation_split": None, "test_split": None}
    return {"custom_dataset": lambda **_: tables, **names, f"{splits.asked}_split": splits.asked}


def content(data: TaskData, task: HarnessConfig) -> Any:
    """lm-eval's definition of the task, the questions, and the rows that examples are drawn from."""
    definition = {key: value for key, value in data.task.dump_config().items() if key not in NO_DEFINITION}
    questions = data.task.eval_docs
    count = min(task.limit or len(questions), len(questions))
    examples = list(data.task.fewshot_docs()) if task.num_fewshot else []
    own = [file for kind in ("*.py", "*.yaml") for file in Path(task.include_path or "").rglob(kind)]
    code = [version("lm_eval"), fingerprint_files(own) if task.include_path else None]
    return [code, _sources(definition), [_sources(questions[i]) for i in range(count)], _sources(examples)]


def _sources(value: Any) -> Any:
    """Plain values, with the source of functions in their place, and the type alone of what else there is."""
    if isinstance(value, dict):
        return {str(key): _sources(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_sources(item) for item in value]
    if isinstance(value, partial):
        return [_sources(value.func), _sources(value.args), _sources(value.keywords)]
    if isfunction(value):
        return getsource(value)
    return value if value is None or isinstance(value, str | int | float) else type(value).__qualname__


def run(
    data: TaskData,
    cfg: Config,
    plan: Plan,
    loaded: LoadedModel,
    journal: Journal,
    recorder: Recorder | None = None,
) -> Evaluation:
    """Evaluate one cell."""
    scorer = Scorer(
        loaded.model,
        plan.policy,
        plan.budget,
        cfg.prefill,
        cfg.positions,
        cfg.executor,
        cfg.seed,
        cfg.task.batch_tokens,
        journal=journal,
        recorder=recorder,
    )
    return evaluate(data, cast(HarnessConfig, cfg.task), scorer, loaded.tokenizer)


def evaluate(data: TaskData, task: HarnessConfig, scorer: Scorer, tokenizer: Any) -> Evaluation:
    """Run lm-eval on one task under the scorer's policy.

    Adds `acc_token_mean` to lm-eval's metrics: the published scripts' scoring, by mean log-likelihood per token.
    """
    from lm_eval.evaluator import evaluate as lm_evaluate

    from h2o_lab.tasks.lm import EvictionLM

    data.task.set_config(key="num_fewshot", value=task.num_fewshot)
    data.task.set_fewshot_seed(seed=task.fewshot_seed)
    lm = EvictionLM(scorer, tokenizer, task.add_bos_token)
    chosen = {"tasks": {task.name: data.task}, "groups": {}, "group_map": {}}
    try:
        with redirect_stderr(StringIO()):  # lm-eval's own progress bar of building prompts; ours is elsewhere
            results = lm_evaluate(lm, chosen, limit=task.limit, bootstrap_iters=BOOTSTRAP)
    except ValueError as error:
        if "larger than population" not in str(error):
            raise
        raise UserError(
            f"task.num_fewshot={task.num_fewshot} asks for more examples than {task.name} has."
        ) from error
    assert results is not None
    records = {record["doc_id"]: record for record in reversed(results["samples"][task.name])}  # one filter's
    describe = _question if data.task.OUTPUT_TYPE == "multiple_choice" else _response
    samples = [describe(records[index], lm, data.task) for index in sorted(records)]
    metrics = {
        _metric(*key.split(",")): float(value)
        for key, value in results["results"][task.name].items()
        if "," in key and isinstance(value, (int, float))
    }
    if data.task.OUTPUT_TYPE == "multiple_choice":
        metrics |= mean_and_error("acc_token_mean", [sample["acc_token_mean"] for sample in samples])
    return _evaluation(data, task, metrics, samples, lm)


def _metric(name: str, kind: str) -> str:
    """lm-eval's `exact_match_stderr,strict-match` as `exact_match_strict-match_stderr`; no filter, no word."""
    if kind == "none":
        return name
    plain = name.removesuffix("_stderr")
    return f"{plain}_{kind}{name.removeprefix(plain)}"


def _evaluation(
    data: TaskData, task: HarnessConfig, metrics: dict[str, float], samples: list[dict[str, Any]], lm: EvictionLM
) -> Evaluation:
    scores = [score for _, score in lm.scores.values()]
    generated = list(lm.generated.values())
    cost = lm.scorer.cost
    return Evaluation(
        metrics=metrics,
        samples=samples,
        origin=data.origin,
        caps=[score.k for score in scores] + [k for _, k in generated],
        cut=sum(score.cut for score in scores) + sum(part.cut for part in lm.generations),
        kv_resident=[score.kv_bytes for score in scores] + [result.kv_bytes for result, _ in generated],
        kv_reserved=max([cost.kv_bytes_reserved, *(part.kv_reserved for part in lm.generations)]),
        tokens_computed=lm.scorer.reader.tokens,
        tokens_scored=sum(score.tokens for score in scores) + sum(len(result.tokens) for result, _ in generated),
        seconds=cost.seconds + sum(part.seconds for part in lm.generations),
        details={
            "fewshot": {
                "examples": task.num_fewshot,
                "choice": task.fewshot,
                "seed": task.fewshot_seed,
                "from": data.fewshot_from,
            },
        },
    )


def _question(record: dict[str, Any], lm: EvictionLM, task: Any) -> dict[str, Any]:
    """One question: what was asked, which choice is right (`gold`, an index), and what each choice got."""
    doc = record["doc"]
    texts = list(task.doc_to_choice(doc))
    choices = []
    for index, (_, continuation) in enumerate(record["arguments"]):
        choice, score = lm.scores[task.config.task, record["doc_id"], index]
        choices.append(
            {
                "text": texts[index] + continuation if task.multiple_input else continuation,
                "logprob": score.logprob,
                "greedy": score.greedy,
                "tokens": score.tokens,
                "context_tokens": len(choice.context),
                "k": score.k,
                "kv_bytes": score.kv_bytes,
            }
        )
    means = [choice["logprob"] / choice["tokens"] for choice in choices]
    gold = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    if isinstance(gold, str):
        gold = texts.index(gold)
    right = gold if isinstance(gold, list) else [gold]
    return {
        "doc_id": record["doc_id"],
        "doc": doc,
        "gold": gold,
        "choices": choices,
        **{metric: record[metric] for metric in METRICS if isinstance(record.get(metric), (int, float))},
        "acc_token_mean": float(max(range(len(means)), key=means.__getitem__) in right),
    }


def _response(record: dict[str, Any], lm: EvictionLM, task: Any) -> dict[str, Any]:
    """One text to score or to generate: what was asked, what came, and lm-eval's own numbers."""
    key = (task.config.task, record["doc_id"])
    generated = [(result, k) for (name, doc, _), (result, k) in lm.generated.items() if (name, doc) == key]
    scored = [score for (name, doc, _), (_, score) in lm.scores.items() if (name, doc) == key]
    return {
        "doc_id": record["doc_id"],
        "doc": record["doc"],
        "target": record["target"],
        "texts": [result.text for result, _ in generated],
        "ended_by": [result.ended_by for result, _ in generated],
        "logprob": sum(score.logprob for score in scored) if scored else None,
        "k": [k for _, k in generated] + [score.k for score in scored],
        **{metric: record[metric] for metric in record["metrics"] if isinstance(record.get(metric), (int, float))},
    }


def _quiet() -> None:
    """lm-eval narrates what our own log says already."""
    for name in ("lm_eval", "lm-eval", "lm_eval.evaluator", "lm_eval.api.task"):
        logging.getLogger(name).setLevel(logging.ERROR)
