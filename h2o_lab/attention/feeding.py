"""How a text is given to a model under a policy: in how many calls, and with how many passes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from transformers import PreTrainedModel

from h2o_lab.attention.cache import EvictionCache
from h2o_lab.policies import H2O, Policy

BEYOND_ANY_TEXT = 10**9


def calls(cache: EvictionCache, valid: torch.Tensor) -> Iterator[slice]:
    """The columns of each call: all at once, or one at a time where layers wait for each other.

    Scopes `model` and `cascade` take tokens at once as long as nothing is evicted.

    Args:
        cache: what the text goes into.
        valid: bool [B, T] of the new columns, False for padding.
    """
    length = valid.shape[1]
    first = length
    if cache.policy.by_step and (cache.states or cache.prefill != "full"):
        counts = valid.long().cumsum(dim=1).cpu()
        seen = cache.seen if cache.states else torch.zeros(len(valid), dtype=torch.int64)
        fits = (seen[:, None] + counts <= cache.smallest_caps(counts[:, -1])[:, None]).all(dim=0)
        first = int(fits.long().cumprod(dim=0).sum())
    if first:
        yield slice(0, first)
    for column in range(first, length):
        yield slice(column, column + 1)


def column_sums(
    model: PreTrainedModel, policy: Policy, executor: str = "auto", **inputs: torch.Tensor
) -> list[torch.Tensor]:
    """The first of two passes: what each token receives under full attention from all queries of the text.

    Call it inside `eviction_attention(model)`.

    Args:
        model: a causal language model.
        policy: the one that will rank by these numbers, for its `group_reduce`.
        executor: see `attend`.
        inputs: `input_ids` and, where there is padding, `attention_mask` and `position_ids`.

    Returns:
        For each layer float32 [B, H, T], by position; -inf behind the end of a shorter sequence.
    """
    layers = model.config.get_text_config(decoder=True).num_hidden_layers
    cache = EvictionCache(layers, H2O(group_reduce=policy.group_reduce), BEYOND_ANY_TEXT, executor=executor)
    model(**inputs, logits_to_keep=1, cache=cache)
    sums = []
    for state in cache.states:
        missing = state.positions[:, :, : state.width] < 0
        sums.append(state.scores[:, :, : state.width].masked_fill(missing, -torch.inf))
    return sums
