"""How fast a model is under a policy: measured on a batch of the cell itself, in a few seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from h2o_lab.attention import EvictionCache
from h2o_lab.attention.executors import warm_up
from h2o_lab.cells import Journal
from h2o_lab.config import Config, PerplexityConfig
from h2o_lab.plan.cost import Cost, batches_to_score
from h2o_lab.plan.work import Prompts, Questions, Texts, Tokens, Work
from h2o_lab.tasks import generation
from h2o_lab.tasks.reader import Reader

if TYPE_CHECKING:
    from h2o_lab.checks import Plan
    from h2o_lab.models import LoadedModel

SECONDS = 2.0
"""Most time of one measurement, as far as it can be foreseen: each try takes twice the tokens of the one before."""
SHORTEST = 8
"""Tokens of the first try."""
STEPS = 4
"""Calls of one token that are timed."""


@dataclass(frozen=True)
class Speed:
    """Tokens read per second, and seconds of a call with one token of each sequence."""

    read: float
    step: float

    def seconds(self, cost: Cost) -> float:
        """Time in the model for a cell."""
        return cost.read / self.read + cost.steps * self.step


@dataclass(frozen=True)
class Sample:
    """The largest batch of a cell: texts, the budget k and the tokens n that it counts of each."""

    texts: list[Tokens]
    ks: list[int] | None
    ns: list[int]
    continued: bool


def measured(work: Work, cfg: Config, plan: Plan, loaded: LoadedModel) -> Speed:
    """Read ever more of the first batch until `SECONDS` are used; where the run does, feed one token at a time.

    Args:
        work: what the task gives to the model.
        cfg, plan: the cell.
        loaded: its model.
    """
    warm_up(cfg.executor, loaded.device)
    sample = first_batch(work, cfg, plan, loaded)
    reader = Reader.of(cfg, plan, loaded, Journal())
    one_by_one = plan.policy.by_step and cfg.prefill != "full"
    with reader.open():
        read = _reading(reader, sample)
        step = _stepping(reader, sample, read) if sample.continued or one_by_one else 0.0
    return Speed(len(sample.texts) / step if one_by_one else read, step)


def _reading(reader: Reader, sample: Sample) -> float:
    """Tokens per second: of one text, ever more of it, then of ever more texts."""
    longest = max(map(len, sample.texts))
    everything = longest * len(sample.texts)
    _start(reader, sample, 1, SHORTEST)  # what is done once, such as compiling, is not counted
    speed, used, tokens = 0.0, 0.0, SHORTEST
    while not speed or (tokens < 2 * everything and used + tokens / speed < SECONDS):
        before, start = reader.tokens, time.perf_counter()
        _start(reader, sample, max(1, tokens // longest), tokens)
        took = time.perf_counter() - start
        speed, used, tokens = (reader.tokens - before) / took, used + took, 2 * tokens
    return speed


def _stepping(reader: Reader, sample: Sample, speed: float) -> float:
    """Seconds of a call that feeds one token to each text, behind as much as can be read in `SECONDS`."""
    rows = len(sample.texts)
    cache = _start(reader, sample, rows, max(SHORTEST, int(speed * SECONDS / rows)))
    tokens, wanted = [text[:1] for text in sample.texts], torch.ones(rows, 1, dtype=torch.bool)
    reader.go_on(tokens, wanted, cache)
    start = time.perf_counter()
    for _ in range(STEPS):
        reader.go_on(tokens, wanted, cache)
    return (time.perf_counter() - start) / STEPS


def _start(reader: Reader, sample: Sample, rows: int, length: int) -> EvictionCache:
    """Read the first texts, cut to a length."""
    texts = [list(text[:length]) for text in sample.texts[:rows]]
    lengths = torch.tensor([len(text) for text in texts])
    ends = torch.arange(int(lengths.max())) == lengths[:, None] - 1
    return reader.start(texts, ends, sample.ks[:rows] if sample.ks is not None else None, sample.ns[:rows])[1]


def first_batch(work: Work, cfg: Config, plan: Plan, loaded: LoadedModel) -> Sample:
    """What the run reads first: its batches come longest first."""
    part, config, budget = work.parts[0], loaded.model.config, plan.budget
    if isinstance(part, Questions):
        units = batches_to_score(part, cfg, plan, config)[0].units
        ks = [unit.k for unit in units] if plan.policy.budgeted else None
        return Sample([unit.prefix for unit in units], ks, [unit.n for unit in units], False)
    if isinstance(part, Prompts):
        new = part.new_tokens
        texts = [part.prompts[i] for i in next(generation._batches(part.prompts, new, cfg.task.batch_tokens))]
        ns = [len(text) + (new if budget is not None and budget.base == "sequence" else 0) for text in texts]
        ks = [budget.entries(len(text), len(text) + new) for text in texts] if budget is not None else None
        return Sample(texts, ks, ns, True)
    return _texts(part, cast(PerplexityConfig, cfg.task), plan)


def _texts(part: Texts, task: PerplexityConfig, plan: Plan) -> Sample:
    """The first chunk of a stream, or the first windows."""
    text = part.texts[0]
    if task.mode == "streaming":
        n, texts = len(text), [text[: task.chunk]]
    else:
        n = min(task.window, len(text))
        rows = min(max(1, task.batch_tokens // n), len(text) // n)
        texts = [text[row * n : (row + 1) * n - 1] for row in range(rows)]
    ks = [plan.budget.entries(n, n)] * len(texts) if plan.budget is not None else None
    return Sample(texts, ks, [n] * len(texts), False)
