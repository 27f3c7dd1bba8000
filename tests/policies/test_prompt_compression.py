"""SnapKV and PyramidKV: what is kept of a prompt, and what happens while generating."""

import pytest
import torch

from h2o_lab.attention import EvictionCache, eviction_attention
from h2o_lab.errors import UserError
from h2o_lab.policies import PyramidKV, SnapKV
from tests.support.models import random_model

K, LENGTH, WINDOW = 16, 50, 6


def ids_for(batch=2) -> torch.Tensor:
    return torch.randint(3, 97, (batch, LENGTH), generator=torch.Generator().manual_seed(3))


def kept(state, b: int, h: int) -> set[int]:
    return {p for p in state.positions[b, h].tolist() if p >= 0}


@torch.no_grad()
def attention_maps(model, ids) -> list[torch.Tensor]:
    """[H, T, T] of each layer, summed over the query heads of a KV head."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    maps = model(ids, output_attentions=True).attentions
    model.set_attn_implementation(before)
    heads = getattr(model.config, "num_key_value_heads", None) or model.config.num_attention_heads
    return [m[0].view(heads, -1, ids.shape[1], ids.shape[1]).sum(dim=1) for m in maps]


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "opt", "gpt_neox"])
@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_keeps_what_the_window_looks_at(family, pooling):
    model, ids = random_model(family), ids_for()
    policy = SnapKV(recent_tokens=WINDOW, kernel_size=3, pooling=pooling)
    cache = EvictionCache(3, policy, K, prefill="full")
    with eviction_attention(model):
        model(ids, cache=cache)
    for b in range(2):
        for state, maps in zip(cache.states, attention_maps(model, ids[b : b + 1]), strict=True):
            seen = maps[:, -WINDOW:].sum(dim=1)
            for h, numbers in enumerate(seen):
                around = [numbers[max(0, s - 1) : s + 2] for s in range(LENGTH)]
                pooled = [float(x.max() if pooling == "max" else x.sum() / 3) for x in around]
                best = sorted(range(LENGTH - WINDOW), key=lambda s: (-pooled[s], -s))[: K - WINDOW]
                assert kept(state, b, h) == set(best) | set(range(LENGTH - WINDOW, LENGTH))


@torch.no_grad()
def test_padding_and_rolling_positions():
    """A left-padded row keeps what it keeps alone; with nothing evicted yet, rolling changes nothing."""
    model, ids = random_model("llama"), ids_for()
    policy = SnapKV(recent_tokens=WINDOW)
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, :11] = 0
    held = {}
    for positions in ("original", "rolling"):
        together, alone = (EvictionCache(3, policy, K, prefill="full") for _ in range(2))
        with eviction_attention(model, positions):
            places = (mask.cumsum(1) - 1).clamp(min=0)
            model(ids, attention_mask=mask, position_ids=places, cache=together)
            model(ids[:1, 11:], cache=alone)
        held[positions] = [[kept(s, 0, h) for h in range(2)] for s in together.states]
        assert held[positions] == [[kept(s, 0, h) for h in range(2)] for s in alone.states]
    assert held["original"] == held["rolling"]


@torch.no_grad()
def test_what_is_kept_of_the_prompt_stays_and_new_tokens_slide():
    model, ids = random_model("llama"), ids_for(1)
    cache = EvictionCache(3, SnapKV(recent_tokens=WINDOW), K, prefill="full")
    with eviction_attention(model):
        model(ids, cache=cache)
        state = cache.states[1]
        ranks = dict(zip(state.positions[0, 0].tolist(), state.static[0, 0].tolist(), strict=True))
        prompt = set(ranks)
        for t in range(K + 3):
            before = kept(cache.states[1], 0, 0)
            model(ids[:, :1], cache=cache)
            (gone,) = before - kept(cache.states[1], 0, 0)
            open_ = [s for s in before if s <= LENGTH + t - WINDOW]
            new = [s for s in open_ if s >= LENGTH]
            assert gone == (min(new) if new else min(open_, key=lambda s: (ranks[s], s)))
    assert len(kept(cache.states[1], 0, 0)) == K
    assert len(kept(cache.states[1], 0, 0) & prompt) == K - WINDOW


@torch.no_grad()
def test_pyramid_gives_more_to_the_first_layers():
    model, ids = random_model("llama"), ids_for()
    cache = EvictionCache(3, PyramidKV(recent_tokens=4), K, prefill="full")
    with eviction_attention(model):
        model(ids, cache=cache)
        model(ids[:, :1], cache=cache)
    assert [state.held.tolist() for state in cache.states] == [[29, 29], [16, 16], [3, 3]]
    assert cache.kv_bytes_resident.tolist() == [48 * 2 * 8 * 2 * 4] * 2
    assert cache.states[2].caps.cut.all()


@torch.no_grad()
def test_heads_that_rank_together_keep_the_same_of_a_prompt():
    model, ids = random_model("llama"), ids_for()
    outs = []
    for executor in ("reference", "numba"):
        cache = EvictionCache(3, SnapKV(recent_tokens=WINDOW, scope="layer"), K, prefill="full", executor=executor)
        with eviction_attention(model):
            model(ids, cache=cache)
            outs.append(model(ids[:, :12], cache=cache).logits)
        assert all(kept(state, b, 0) == kept(state, b, 1) for state in cache.states for b in range(2))
    torch.testing.assert_close(*outs, atol=1e-4, rtol=0)


def test_refusals():
    with pytest.raises(UserError, match="use prefill=full"):
        EvictionCache(3, SnapKV(), K)
    with pytest.raises(UserError, match="kernel_size must be odd"):
        SnapKV(kernel_size=4)
    with pytest.raises(UserError, match="pooling must be mean or max"):
        SnapKV(pooling="median")
    with pytest.raises(UserError, match="needs recent_tokens"):
        SnapKV(recent_tokens=None)
