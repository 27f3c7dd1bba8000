"""One cell: taken over where it is finished, else evaluated, recorded and tracked."""

from __future__ import annotations

import dataclasses
import logging
import time
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from h2o_lab.checks import Plan
from h2o_lab.config import Config
from h2o_lab.parallel import in_step, meet, size

if TYPE_CHECKING:
    from h2o_lab.cells import Journal
    from h2o_lab.models import LoadedModel
    from h2o_lab.results import ResultFolder
    from h2o_lab.stats import Recorder
    from h2o_lab.tasks.evaluation import Evaluation

log = logging.getLogger(__name__)


def compute(
    cfg: Config, plan: Plan, result: ResultFolder, overrides: list[str], group: str, name: str
) -> dict[str, Any]:
    """The record of a cell: of a finished run of it, if there is one and `resume` allows; else evaluated now.

    Args:
        cfg: the configuration.
        plan: its policy and budget.
        result: the folder that receives the record.
        overrides: of the command line, for the record.
        group, name: of the run, for the tracker.

    Raises:
        UserError: data or model cannot be had, or a file cannot be written.
        OutOfStep: of several processes that share a model, some failed and some did not.
    """
    from h2o_lab.cells import Cell, Journal
    from h2o_lab.cells.identity import SEMANTICS, STATISTICS, identity, name_of
    from h2o_lab.models import model_fingerprint
    from h2o_lab.results.trackers import tracker
    from h2o_lab.stats import has_tables

    resolved: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    result.write_config(resolved)
    start = time.perf_counter()
    data, content = task_data(OmegaConf.to_yaml(cfg.task, resolve=True), OmegaConf.to_yaml(cfg.data, resolve=True))
    seconds = {"load_data": time.perf_counter() - start}
    model = model_fingerprint(cfg.model)
    cell = Cell(Path(cfg.results_dir), name_of(identity(cfg, plan, content, model)))
    with cell.claimed():
        finished = cell.finished() if cfg.resume else None
        if finished is not None and cfg.stats.name != "none" and not has_tables(finished):
            finished = None  # they were damaged: only a new evaluation brings them back
        if finished is not None:
            cell.conclude()
            return cell.reuse(finished, result, {"overrides": overrides, "model": cfg.model.name})
        journal = cell.begin(result, anew=not cfg.resume)
        if cfg.stats.name != "none":
            journal = Journal()  # what was recorded of a batch is not in it
        with tracker(cfg.tracker, resolved, result.path, group, name) as tracked:
            with in_step(cell.name, resolved, journal):
                record, samples, recorded = run_cell(cfg, plan, data, journal, seconds)
            record |= {"cell": cell.name, "semantics": SEMANTICS, "content": {"data": content, "model": model}}
            record |= {"overrides": overrides} | ({} if cfg.stats.name == "none" else {"statistics": STATISTICS})
            result.write_samples(samples)
            result.write_stats(recorded)
            record = result.finish(record)
            tracked.log(record, samples)
        cell.conclude()
    return record


def run_cell(
    cfg: Config, plan: Plan, data: Any, journal: Journal, seconds: dict[str, float]
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, bytes]]:
    """Load the model, evaluate and describe one cell.

    Returns:
        The result record, one record per question or text, and the tables of recorded attention by file name.

    Args:
        cfg, plan: what is asked.
        data: what the task's kind has loaded.
        journal: what is half done.
        seconds: what was spent before; goes into the record.
    """
    from h2o_lab.attention.executors import warm_up
    from h2o_lab.models import model_fingerprint
    from h2o_lab.results.environment import environment, peak_memory_bytes, reset_peak_memory
    from h2o_lab.stats import Recorder
    from h2o_lab.tasks.kinds import kind_of

    start = time.perf_counter()
    loaded = _model(OmegaConf.to_yaml(cfg.model, resolve=True), model_fingerprint(cfg.model))
    machine = environment(loaded.device)  # before the work: the repository may change while it runs
    seconds["load_model"] = time.perf_counter() - start
    start = time.perf_counter()
    warm_up(cfg.executor, loaded.device)
    meet()
    recorder = Recorder(cfg.stats, loaded.tokenizer) if cfg.stats.name != "none" else None
    if recorder is not None:
        recorder.warm_up(loaded.device)
    seconds["compile"] = time.perf_counter() - start
    reset_peak_memory(loaded.device)
    start = time.perf_counter()
    resumed = len(journal)
    found: Evaluation = kind_of(cfg.task.kind).run(data, cfg, plan, loaded, journal, recorder)
    seconds["evaluate"] = time.perf_counter() - start
    recorded, told = _tables(recorder, seconds) if recorder is not None else ({}, {})
    record = describe(cfg, plan) | {
        "metrics": found.metrics,
        "main_metric": next(iter(found.metrics)),
        "samples": len(found.samples),
        "k": {
            "mean": sum(found.caps) / len(found.caps),
            "min": min(found.caps),
            "max": max(found.caps),
            "cut_samples": found.cut,
        },
        "kv_bytes": {
            "resident_mean": sum(found.kv_resident) / len(found.kv_resident),
            "resident_max": max(found.kv_resident),
            "reserved_max": found.kv_reserved,
        },
        "tokens": {"computed": found.tokens_computed, "scored": found.tokens_scored},
        "seconds": seconds | {"model": found.seconds},
        "resumed_batches": resumed,
        "tokens_per_second": found.tokens_computed / found.seconds,
        "peak_memory_bytes": peak_memory_bytes(loaded.device),
        **found.details,
        "data": {"source": cfg.data.source, "origin": found.origin},
        "environment": machine | {"processes": size()},
    }
    if recorder is not None:
        record["stats"] = told
    return record, found.samples, recorded


def _tables(recorder: Recorder, seconds: dict[str, float]) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The recorded tables as files, and what the record says of them; if they fail, the evaluation is not lost."""
    from h2o_lab.results.store import sentence
    from h2o_lab.stats import files, headline, tables

    start = time.perf_counter()
    try:
        found = tables(recorder)
        return files(found), headline(recorder, found)
    except Exception as error:
        log.exception("the statistics cannot be summed up; the result is kept without them")
        return {}, recorder.about | {"error": sentence(error)}
    finally:
        seconds["tables"] = time.perf_counter() - start


@lru_cache(maxsize=8)
def task_data(task: str, source: str) -> tuple[Any, str]:
    """What the task of this YAML evaluates, as its kind loads it, and its fingerprint; kept for the next cells."""
    from h2o_lab.cells import fingerprint
    from h2o_lab.tasks.kinds import kind_of

    task_cfg, data_cfg = OmegaConf.create(task), OmegaConf.create(source)
    kind = kind_of(task_cfg.kind)
    data = kind.load(task_cfg, data_cfg)
    return data, fingerprint(kind.content(data, task_cfg))


@lru_cache(maxsize=1)
def _model(description: str, content: str) -> LoadedModel:
    """The model of this YAML and content, kept for the next cell of a sweep in one process."""
    from h2o_lab.models import load_model

    return load_model(OmegaConf.create(description))  # type: ignore[arg-type]


def describe(cfg: Config, plan: Plan) -> dict[str, Any]:
    """What was asked, in the words of the configuration."""
    return {
        "model": cfg.model.name,
        "task": cfg.task.name,
        "policy": plan.policy.name,
        "policy_fields": dataclasses.asdict(plan.policy) | {"priority": plan.policy.priority.name.lower()},
        "dtype": cfg.model.dtype,
        "budget": cfg.budget if plan.budget else None,
        "budget_tokens": cfg.budget_tokens if plan.budget else None,
        "budget_base": cfg.budget_base,
        "prefill": cfg.prefill,
        "positions": cfg.positions,
        "executor": cfg.executor,
        "seed": cfg.seed,
    }
