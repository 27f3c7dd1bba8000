"""Where models meet the primitive: transformers' attention and mask registries, for the time of a context.

No model's forward is copied or patched: any model whose attention goes through the registries works.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from h2o_lab.attention.layer import LAYER
from h2o_lab.attention.padding import known
from h2o_lab.attention.rotary import Rotary
from h2o_lab.errors import UserError

NAME = "h2o_lab"
POSITIONS = ("original", "rolling")


@contextmanager
def eviction_attention(model: PreTrainedModel, positions: str = "original") -> Iterator[None]:
    """Let a model attend through the `EvictionCache` it is given, until the context ends.

    Args:
        model: a causal language model of transformers.
        positions: `original` (keys keep the position they were computed with) or `rolling` (a query stands at
            entries held - 1, and each key at its rank in the cache by age, as in StreamingLLM; the position ids
            that the model is given are then ignored). Rolling is for rotary models.

    Example:
        >>> cache = EvictionCache(model.config.num_hidden_layers, H2O(), Budget(fraction=0.2))
        >>> with eviction_attention(model):
        ...     model.generate(**inputs, past_key_values=cache)

    Raises:
        UserError: the model's attention cannot be replaced, has a feature that eviction does not cover, or its
            positions cannot roll.
    """
    check_model(model.config)
    check_positions(positions, model.config)
    if not model._can_set_attn_implementation():
        raise UserError(
            f"{type(model).__name__} does not let its attention be replaced; models whose attention goes through "
            "transformers' attention interface do, for example OPT, LLaMA and GPT-NeoX."
        )
    rotary = Rotary(model) if positions == "rolling" else None
    before = model.config._attn_implementation
    attention, masks = ALL_ATTENTION_FUNCTIONS._global_mapping, ALL_MASK_ATTENTION_FUNCTIONS._global_mapping
    registered = NAME in attention
    attention[NAME], masks[NAME] = partial(_attention, rotary=rotary), _padding  # type: ignore[assignment]
    unrotated = rotary.module.register_forward_pre_hook(_zero_positions, with_kwargs=True) if rotary else None
    try:
        model.set_attn_implementation(NAME)
        yield
    finally:
        if unrotated is not None:
            unrotated.remove()
        model.set_attn_implementation(before)
        if not registered:
            attention.pop(NAME, None)
            masks.pop(NAME, None)


def check_model(config: PretrainedConfig) -> None:
    """Refuse models with attention that the primitive does not compute.

    Raises:
        UserError: names the feature.
    """
    text = config.get_text_config(decoder=True)
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    windowed = getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True)
    if kinds != {"full_attention"} or (windowed and not getattr(text, "layer_types", None)):
        raise UserError(
            f"{config.model_type} has layers that do not attend in full (sliding windows, linear attention): "
            "eviction policies are defined for models whose layers all do."
        )


def check_positions(positions: str, config: PretrainedConfig) -> None:
    """Refuse positions that are unknown, or that a model cannot have.

    Raises:
        UserError: says which are allowed, or why rolling is not.
    """
    if positions not in POSITIONS:
        raise UserError(f"positions={positions} is unknown: it must be one of {', '.join(POSITIONS)}.")
    if positions == "rolling" and position_limit(config) is not None:
        raise UserError(
            f"positions=rolling is impossible with {config.model_type}: its positions are learned, one vector per "
            "absolute place, and cannot be rotated; use positions=original or a rotary model."
        )


def position_limit(config: PretrainedConfig) -> int | None:
    """Longest text of a model with a learned position table, in tokens; None for rotary and ALiBi models."""
    text = config.get_text_config(decoder=True)
    rotary = getattr(text, "rope_parameters", None) or getattr(text, "rotary_dim", None)
    if rotary or getattr(text, "alibi", False) or text.model_type in ("bloom", "mpt"):
        return None
    return getattr(text, "max_position_embeddings", None)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    *,
    rotary: Rotary | None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    layer = getattr(key, LAYER, None)
    if layer is None:
        raise UserError(
            f"{type(module).__name__} attends without an EvictionCache: pass one to the model as past_key_values; "
            "if there is one, this model changes its keys after the cache, which eviction does not cover."
        )
    for extra in ("softcap", "s_aux", "sliding_window"):
        if kwargs.get(extra) is not None:
            raise UserError(f"{type(module).__name__} attends with {extra}, which eviction does not cover.")
    if query.requires_grad:
        raise UserError("eviction is for inference only: call the model under torch.no_grad().")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    return layer.attend(query, key, value, scale, attention_mask, rotary).transpose(1, 2).contiguous(), None


def _zero_positions(module: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Rotate by nothing: the executors rotate by rank."""
    if "position_ids" in kwargs:
        return args, kwargs | {"position_ids": torch.zeros_like(kwargs["position_ids"])}
    return (args[0], torch.zeros_like(args[1]), *args[2:]), kwargs


def _padding(
    *,
    q_length: int,
    q_offset: int,
    attention_mask: torch.Tensor | None = None,
    config: PretrainedConfig | None = None,
    **kwargs,
) -> torch.Tensor | None:
    """bool [B, q_length] of the new columns that are tokens, or None where all are; no T x T mask."""
    limit = position_limit(config) if config is not None else None
    if limit is not None:
        tokens = q_offset + q_length if attention_mask is None else int(attention_mask.sum(dim=-1).max())
        if tokens > limit:
            raise UserError(
                f"the text has {tokens} tokens and the model's position table has {limit}: shorten the text, "
                "or choose a rotary model."
            )
    if attention_mask is None:
        return None
    valid = attention_mask[:, -q_length:].bool()
    counts = valid.sum(dim=1).cpu()
    return None if bool((counts == q_length).all()) else known(valid, counts)
