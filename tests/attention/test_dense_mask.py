"""A trained model three ways: in one chunk, token by token, and densely under the mask of the kept sets."""

import pytest
import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from h2o_lab.attention import EvictionCache, eviction_attention
from h2o_lab.attention.feeding import calls, column_sums
from h2o_lab.policies import SpAtten, SpAttenCascade
from tests.support.invariants import EVICTING, POLICIES, SPARSE
from tests.support.models import REAL_MODELS

LENGTH, CAP = 64, 14
NAMES = [*EVICTING, "spatten", "spatten_cascade"]


def by_calls(model, ids: torch.Tensor, cache: EvictionCache) -> torch.Tensor:
    """Logits [T, V], in as few calls as the policy allows."""
    parts = calls(cache, torch.ones_like(ids, dtype=torch.bool))
    return torch.cat([model(ids[:, part], cache=cache).logits[0] for part in parts])


@torch.no_grad()
@pytest.mark.parametrize("model_name", REAL_MODELS)
@pytest.mark.parametrize("name", SPARSE)
def test_chunk_equals_steps_where_nothing_is_evicted(real_model, book_tokens, model_name, name):
    model, _ = real_model(model_name)
    ids = book_tokens(model_name, LENGTH)[None]
    outs = []
    for executor, length in (("numba", LENGTH), ("numba", 1), ("reference", 40)):
        cache = EvictionCache(model.config.num_hidden_layers, POLICIES[name][0], CAP, executor=executor)
        with eviction_attention(model):
            outs.append(torch.cat([model(part, cache=cache).logits[0] for part in ids.split(length, dim=1)]))
    for other in outs[1:]:
        apart = (other.log_softmax(-1) - outs[0].log_softmax(-1)).abs().amax(dim=-1)
        # of two logits that differ by less than the rounding of a product, either may be the k-th largest
        assert apart.median() < 1e-5
        assert (apart > 1e-4).float().mean() < 0.2
        assert apart.max() < 0.1


@torch.no_grad()
@pytest.mark.parametrize("model_name", REAL_MODELS)
@pytest.mark.parametrize(
    "policy", [*(POLICIES[name][0] for name in EVICTING), SpAtten(), SpAttenCascade()], ids=NAMES
)
def test_chunk_equals_steps_equals_a_dense_mask(real_model, book_tokens, monkeypatch, model_name, policy):
    model, _ = real_model(model_name)
    ids = book_tokens(model_name, LENGTH)[None]
    layers = model.config.num_hidden_layers

    given = None
    if policy.two_passes:
        with eviction_attention(model):
            given = column_sums(model, policy, input_ids=ids)

    def cache() -> EvictionCache:
        return EvictionCache(layers, policy, CAP, executor="numba", given=given, lengths=[LENGTH])

    steps, stepping, masks = [], cache(), [[] for _ in range(layers)]
    with eviction_attention(model):
        chunk = by_calls(model, ids, cache())
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
