"""From overrides to one line per cell: what it takes, whether it fits, how long it lasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import OmegaConf

from h2o_lab.compute import task_data
from h2o_lab.errors import UserError
from h2o_lab.memory import largest_batch, weight_bytes
from h2o_lab.models import load_config, load_model
from h2o_lab.plan.cells import TO_DO, Planned, planned
from h2o_lab.plan.cost import Cost, cost_of
from h2o_lab.plan.device import Memory, memory_of
from h2o_lab.plan.speed import Speed, measured
from h2o_lab.plan.work import Work, load_tokenizer, work_of
from h2o_lab.sweep import in_cell

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Line:
    """A cell and what it takes.

    Attributes:
        cell: the cell.
        work: what its task gives to the model.
        cost: what that takes.
        weights: bytes of the model.
        memory: of its device, before anything is loaded.
        fits: most sequences, as large as its largest, whose KV cache fits there beside the weights.
        seconds: time in the model; None where it was not measured.
    """

    cell: Planned
    work: Work
    cost: Cost
    weights: int
    memory: Memory
    fits: int
    seconds: float | None = None

    @property
    def fit(self) -> bool:
        """Whether the weights and the largest batch fit into what is free."""
        return self.weights + self.cost.kv_batch <= self.memory.free


def plan(overrides: Sequence[str], most: int | None = None, *, calibrate: bool = False) -> list[Line]:
    """What each cell of a sweep takes.

    Args:
        overrides: as for `python -m h2o_lab.run -m`.
        most: samples of a task whose prompts are tokenised, the first; None for all.
        calibrate: whether to load the models and measure their speed, for cells that are to be done and fit.

    Raises:
        UserError: a cell is wrong or cannot be run, named with its overrides.
        HydraException: the overrides cannot be composed.
    """
    lines = []
    for cell in planned(overrides):
        try:
            lines.append(_line(cell, most))
        except UserError as error:
            raise in_cell(error, cell.overrides) from error
    if not calibrate:
        return lines
    speeds = _speeds([line for line in lines if line.cell.state == TO_DO and line.fit])
    return [
        replace(line, seconds=speeds[key].seconds(line.cost)) if (key := _condition(line.cell)) in speeds else line
        for line in lines
    ]


def _line(cell: Planned, most: int | None) -> Line:
    cfg = cell.cfg
    model = _model(cell.described[0])
    work = _work(*cell.described, most)
    cost = cost_of(work, cfg, cell.plan, model.config)
    fits = largest_batch(model.config, cost.entries, model.memory.free - model.weights, cfg.model.dtype)
    return Line(cell, work, cost, model.weights, model.memory, fits)


class _Model(NamedTuple):
    """What can be known of a model without its weights."""

    config: PretrainedConfig
    tokenizer: PreTrainedTokenizerBase
    weights: int
    memory: Memory


@lru_cache(maxsize=32)
def _model(described: str) -> _Model:
    cfg: Any = OmegaConf.create(described)
    config = load_config(cfg)
    weights = weight_bytes(config, cfg.dtype, cfg.trust_remote_code)
    return _Model(config, load_tokenizer(cfg), weights, memory_of(cfg))


@lru_cache(maxsize=32)
def _work(model: str, task: str, data: str, most: int | None) -> Work:
    task_cfg: Any = OmegaConf.create(task)
    return work_of(task_data(task, data)[0], task_cfg, *_model(model)[:2], most)


def _condition(cell: Planned) -> tuple[str, ...]:
    """Cells that share it are taken to be equally fast: all but the budget and the size of the task."""
    cfg = cell.cfg
    return (cell.described[0], cfg.task.kind, repr(cell.plan.policy), cfg.prefill, cfg.positions, cfg.executor)


def _speeds(lines: Sequence[Line]) -> dict[tuple[str, ...], Speed]:
    """One measurement for each condition, on its first cell; one model is in memory at a time."""
    first: dict[tuple[str, ...], Line] = {}
    for line in lines:
        first.setdefault(_condition(line.cell), line)
    speeds: dict[tuple[str, ...], Speed] = {}
    for model in dict.fromkeys(line.cell.described[0] for line in lines):
        speeds |= _speeds_of(model, {key: line for key, line in first.items() if key[0] == model})
    return speeds


def _speeds_of(model: str, lines: dict[tuple[str, ...], Line]) -> dict[tuple[str, ...], Speed]:
    cfg: Any = OmegaConf.create(model)
    loaded = load_model(cfg)
    return {key: measured(line.work, line.cell.cfg, line.cell.plan, loaded) for key, line in lines.items()}
