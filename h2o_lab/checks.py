"""What can be wrong with a run, said before anything slow starts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from omegaconf import OmegaConf

from h2o_lab.config import Config, ModelConfig
from h2o_lab.errors import UserError
from h2o_lab.policies import Budget, Policy, SparsePolicy

if TYPE_CHECKING:
    from transformers import PretrainedConfig

SPLIT_BY_HEADS = ("k_proj", "query_key_value")
"""Modules of a tensor-parallel plan whose output holds the keys, head by head."""
STATS = ("none", "attention")


@dataclass(frozen=True)
class Plan:
    """A checked run: the policy and its budget (None for the full cache)."""

    policy: Policy
    budget: Budget | None


def check(cfg: Config) -> Plan:
    """Check everything that needs no weights; the data is read, the packaged model and data are fetched.

    Raises:
        UserError: names the key, its value and what is allowed.
    """
    from h2o_lab.results.trackers import check_tracker
    from h2o_lab.tasks.kinds import kind_of

    at_least("task.limit", cfg.task.limit, 1)
    at_least("task.batch_tokens", cfg.task.batch_tokens, 1)
    at_least("seed", cfg.seed, 0)
    _check_words(cfg)
    check_tracker(cfg.tracker)
    policy = build_policy(cfg.policy)
    budget = None
    if policy.budgeted or cfg.budget is not None or cfg.budget_tokens is not None:
        budget = Budget(cfg.budget, cfg.budget_tokens, cfg.budget_base)
    if budget is not None and budget.tokens is not None:
        policy.check_tokens(budget.tokens)
    if policy.compresses_prompt and cfg.prefill != "full":
        raise UserError(
            f"policy={policy.name} compresses a prompt that was read in full, and prefill={cfg.prefill}: use "
            "prefill=full."
        )
    if cfg.prefill == "full" and policy.evicts and not policy.causal:
        raise UserError(
            f"policy={policy.name} reads each text at once, so that prefill=full would never evict: use "
            "prefill=evict."
        )
    _check_stats(cfg, policy)
    _check_model(cfg, policy)
    kind_of(cfg.task.kind).check(cfg.task, cfg.data, policy, cfg.prefill)
    return Plan(policy, budget if policy.budgeted else None)


def build_policy(cfg) -> Policy:
    """Instantiate the policy that a `conf/policy` YAML describes.

    Raises:
        UserError: the class cannot be found, or a field is wrong.
    """
    from hydra.utils import get_class

    described = OmegaConf.to_container(cfg, resolve=True) if OmegaConf.is_config(cfg) else cfg
    if not isinstance(described, dict) or not isinstance(described.get("_target_"), str):
        raise UserError(f"policy must name a class by _target_, and is {described!r}.")
    fields = {str(key): value for key, value in described.items() if key != "_target_"}
    try:
        kind = get_class(described["_target_"])
        if not (isinstance(kind, type) and issubclass(kind, Policy)):
            raise UserError(f"policy must name a class derived from h2o_lab.policies.Policy, and is {described!r}.")
        return kind(**fields)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        first = " ".join(str(error).split())
        raise UserError(f"policy {described} cannot be built: {first}") from error


def at_least(key: str, value: float | None, least: int) -> None:
    """Refuse a number below the least one; None is allowed.

    Raises:
        UserError: names the key.
    """
    if value is not None and value < least:
        raise UserError(f"{key}={value} is out of range: it must be {least} or more.")


def _check_words(cfg: Config) -> None:
    from h2o_lab.attention.cache import PREFILLS
    from h2o_lab.attention.executors import check_executor
    from h2o_lab.models.placement import parse_device

    if cfg.prefill not in PREFILLS:
        raise UserError(f"prefill={cfg.prefill} is unknown: it must be one of {', '.join(PREFILLS)}.")
    check_executor(cfg.executor)
    check_executor(cfg.executor, parse_device(cfg.model))


def _check_stats(cfg: Config, policy: Policy) -> None:
    """Refuse numbers out of range, and what is not recorded."""
    stats = cfg.stats
    if stats.name not in STATS:
        raise UserError(f"stats={stats.name} is unknown: it must be one of {', '.join(STATS)}.")
    if stats.name == "none":
        return
    for key in ("threshold", "heavy_share"):
        if not 0 < getattr(stats, key) < 1:
            raise UserError(f"stats.{key}={getattr(stats, key)} is out of range: it must be between 0 and 1.")
    for key, least in (("checkpoints", 1), ("sample_size", 1), ("window", 1)):
        at_least(f"stats.{key}", getattr(stats, key), least)
    if cfg.model.tp_plan is not None:
        raise UserError(
            f"stats=attention sees the heads of one process, and model.tp_plan={cfg.model.tp_plan} shares them "
            "out: use model.device_map=auto or stats=none."
        )
    if cfg.positions == "rolling":
        raise UserError("stats=attention cannot record positions=rolling: use positions=original or stats=none.")
    if policy.by_step and cfg.prefill != "full":
        raise UserError(
            f"stats=attention records texts that are read at once, and policy={policy.name} reads one token at a "
            "time: use prefill=full, another policy, or stats=none."
        )
    if getattr(cfg.task, "mode", None) == "streaming":
        raise UserError("stats=attention does not record streams: use task.mode=windowed or stats=none.")
    stride, window = (getattr(cfg.task, key, None) for key in ("stride", "window"))
    if stride is not None and window is not None and 2 * stride < window:
        raise UserError(
            f"stats=attention records windows that are new by half at least, and task.stride={stride} is below "
            f"half of task.window={window}: use a larger stride or stats=none."
        )


def _check_model(cfg: Config, policy: Policy) -> None:
    """Refuse what the model's configuration rules out; its weights are not loaded."""
    from h2o_lab.attention.hook import check_model, check_positions
    from h2o_lab.models import load_config

    config = load_config(cfg.model)
    _check_parts(cfg.model, config, policy)
    check_model(config)
    check_positions(cfg.positions, config)
    if cfg.positions == "rolling" and isinstance(policy, SparsePolicy):
        raise UserError(
            f"policy={policy.name} keeps everything, so that there are no positions to roll: use "
            "positions=original."
        )


def _check_parts(cfg: ModelConfig, config: PretrainedConfig, policy: Policy) -> None:
    """Refuse what processes that have a part of the heads each cannot compute."""
    from h2o_lab.parallel import size

    processes = size()
    if cfg.tp_plan is None:
        if processes > 1:
            raise UserError(
                f"torchrun started {processes} processes, and with model.tp_plan=null there is work for one: use "
                "model.tp_plan=auto, or start without torchrun."
            )
        return
    text = config.get_text_config(decoder=True)
    plan = getattr(config, "base_model_tp_plan", None) or getattr(text, "base_model_tp_plan", None) or {}
    styles = {module.split(".")[-1]: style for module, style in plan.items()}
    if not any(styles.get(module) == "colwise" for module in SPLIT_BY_HEADS):
        raise UserError(
            f"model.tp_plan={cfg.tp_plan} is impossible with {config.model_type}: transformers has no plan that "
            "splits its attention by heads; use model.device_map=auto and no torchrun, or a model such as LLaMA, "
            "Mistral, Qwen2 or GPT-NeoX."
        )
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    if heads % processes:
        raise UserError(
            f"torchrun started {processes} processes, which cannot share the model's {heads} KV heads equally: "
            f"their number has to divide {heads}."
        )
    if policy.scope != "head":
        raise UserError(
            f"policy={policy.name} has scope={policy.scope}: it sums scores over heads, which lie in different "
            f"processes with model.tp_plan={cfg.tp_plan}; use policy.scope=head or model.tp_plan=null."
        )
    _check_devices()


def _check_devices() -> None:
    """Each process of a machine takes the GPU of its own number, where there are any."""
    import torch

    local, gpus = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    if torch.cuda.is_available() and local > gpus:
        raise UserError(
            f"torchrun started {local} processes here, one for a GPU, and there are {gpus}: start fewer."
        )
