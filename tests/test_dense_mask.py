"""A trained model three ways: in one chunk, token by token, and densely under the mask of the kept sets."""

import pytest
import torch
from conftest import REAL_MODELS
from invariants import EVICTING, POLICIES
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from h2o_lab.attention import EvictionCache, eviction_attention
from h2o_lab.attention.feeding import column_sums

LENGTH, CAP = 120, 24


@torch.no_grad()
@pytest.mark.parametrize("model_name", REAL_MODELS)
@pytest.mark.parametrize("name", EVICTING)
def test_chunk_equals_steps_equals_a_dense_mask(real_model, book_tokens, monkeypatch, model_name, name):
    model, _ = real_model(model_name)
    ids = book_tokens(model_name, LENGTH)[None]
    layers = model.config.num_hidden_layers

    policy = POLICIES[name][0]
    given = None
    if policy.two_passes:
        with eviction_attention(model):
            given = column_sums(model, policy, input_ids=ids)

    def cache() -> EvictionCache:
        return EvictionCache(layers, policy, CAP, executor="numba", given=given, lengths=[LENGTH])

    steps, stepping, masks = [], cache(), [[] for _ in range(layers)]
    with eviction_attention(model):
        chunk = model(ids, cache=cache()).logits[0]
        for t in range(LENGTH):
            steps.append(model(ids[:, t : t + 1], cache=stepping).logits[0, 0])
            for mask, state in zip(masks, stepping.states, strict=True):
                row = torch.full((state.positions.shape[1], LENGTH + 1), -torch.inf)
                row.scatter_(1, state.positions[0].long() % (LENGTH + 1), 0.0)  # EMPTY falls into the last column
                mask.append(row[:, :LENGTH])

    def masked(module, query, key, value, attention_mask, scaling, **kwargs):
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
        mask = torch.stack(masks[module.layer_idx], dim=1).repeat_interleave(group, dim=0)
        p = (query @ key.transpose(2, 3) * scaling + mask).softmax(dim=-1)
        return (p @ value).transpose(1, 2), None

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "masked", masked)
    monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, "masked", lambda **_: None)
    before = model.config._attn_implementation
    model.set_attn_implementation("masked")
    try:
        dense = model(ids, use_cache=False).logits[0]
    finally:
        model.set_attn_implementation(before)
    for other in (torch.stack(steps), dense):
        torch.testing.assert_close(other.log_softmax(-1), chunk.log_softmax(-1), atol=1e-5, rtol=1e-5)
