"""The same cell with its first samples alone: as if the run had been stopped, not as if less had been asked."""

from __future__ import annotations

import copy
from typing import Any, cast

from omegaconf import OmegaConf

from h2o_lab.checks import Plan
from h2o_lab.config import Config, PerplexityConfig, RetrievalConfig
from h2o_lab.errors import UserError
from h2o_lab.policies import Policy


def first_samples(cfg: Config, plan: Plan, data: Any, most: int) -> Config:
    """A configuration whose samples are the first ones of `cfg`, at least one and about `most`.

    Args:
        cfg: of the stored result.
        plan: its policy and budget.
        data: what its task evaluates.
        most: how many samples to compute again.

    Raises:
        UserError: the samples depend on the length of the whole text in a way that no setting can say.
    """
    small = copy.deepcopy(cfg)
    small.stats.name = "none"
    task: Any = small.task
    if task.kind == "perplexity":
        task.limit = 1
        if task.mode == "streaming":
            _shorten_stream(small, plan, data.texts[0].text, most)
        else:
            _shorten_windows(task, most)
    else:
        each = most
        if task.kind == "retrieval":
            each = max(1, most // len(cast(RetrievalConfig, task).depths))
        task.limit = each if task.limit is None else min(each, task.limit)
    return small


def _shorten_windows(task: PerplexityConfig, most: int) -> None:
    """The budget of a window counts that window alone."""
    stride = task.stride if task.stride is not None else task.window - 1
    enough = task.window + (most - 1) * stride
    task.tokens = enough if task.tokens is None else min(enough, task.tokens)


def _shorten_stream(cfg: Config, plan: Plan, text: str, most: int) -> None:
    """Whole chunks, and a budget and pattern that count the tokens of the whole text."""
    from h2o_lab.plan.work import load_tokenizer

    task = cast(PerplexityConfig, cfg.task)
    length = len(load_tokenizer(cfg.model)(text, add_special_tokens=False).input_ids[: task.tokens])
    enough = -(-most * task.every // task.chunk) * task.chunk + 1
    if enough >= length:
        return
    task.tokens = enough
    if plan.budget is None:
        return
    k = plan.budget.entries(length, length)
    cfg.budget, cfg.budget_tokens = None, k
    _fix_pattern(cfg, plan.policy, k, length)


def _fix_pattern(cfg: Config, policy: Policy, k: int, length: int) -> None:
    """Say aloud the period that follows from the length of the text."""
    key = {"strided": "stride", "fixed": "block"}.get(policy.pattern or "")
    if key is None or getattr(policy, key) is not None:
        return
    if policy.taper:
        raise UserError(
            f"policy={policy.name} with taper has a pattern in each layer that follows the length of the whole "
            f"text: its first samples alone cannot be computed, unless policy.{key} is set."
        )
    period = policy.protection(k, length).pattern.period
    OmegaConf.update(cast(Any, cfg), f"policy.{key}", period, force_add=True)
