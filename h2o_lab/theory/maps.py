"""Attention maps of a model over a text, and the tokens of a head among which sets are searched."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from h2o_lab.theory.objectives import Floats

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def attention_maps(model: "PreTrainedModel", ids: "torch.Tensor") -> NDArray[np.float32]:
    """Full causal attention, nothing evicted: float32 [layers, heads, T, T], query by key.

    Args:
        model: one with transformers' `eager` attention; its implementation is put back afterwards.
        ids: int64 [T], one text.
    """
    import torch

    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            maps = model(ids[None].to(model.device), output_attentions=True, use_cache=False).attentions
    finally:
        model.set_attn_implementation(before)
    return torch.cat(maps).float().cpu().numpy()


def accumulated(attention: Floats) -> Floats:
    """[..., T, T], query by key, to the scores o_t after each step t: the running sum over queries."""
    return attention.cumsum(axis=-2)


def candidates(attention: Floats, heavy: int, spread: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Positions of the tokens that sets are chosen from, ascending: int64 [heavy + spread].

    The `heavy` tokens with the most attention over the whole text, and `spread` drawn without replacement from
    the rest. Heavy ones alone would leave no bad choice, drawn ones alone hardly ever a heavy hitter.

    Args:
        attention: [T, T], query by key.
        heavy: how many heavy hitters.
        spread: how many others.
        rng: draws them.

    Raises:
        ValueError: the text is shorter than heavy + spread.
    """
    length = attention.shape[-1]
    if heavy + spread > length:
        raise ValueError(f"{heavy + spread} candidates do not fit into a text of {length} tokens.")
    order = np.argsort(-attention.sum(axis=0), kind="stable")
    drawn = rng.choice(order[heavy:], size=spread, replace=False)
    return np.sort(np.concatenate([order[:heavy], drawn]))
