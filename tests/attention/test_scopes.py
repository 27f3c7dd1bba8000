"""Scopes beyond one layer: what is evicted follows from all layers' scores, one token at a time."""

import pytest
import torch

from h2o_lab.attention import EvictionCache, eviction_attention
from h2o_lab.attention.feeding import calls
from h2o_lab.errors import UserError
from h2o_lab.policies import H2O, Policy, SpAtten, SpAttenCascade
from tests.support.invariants import EXECUTORS
from tests.support.models import random_model

LAYERS, K, LENGTH = 3, 12, 50


def snapshot(state, b: int) -> dict[int, float]:
    """Score by position."""
    pairs = zip(state.positions[b, 0].tolist(), state.scores[b, 0].tolist(), strict=True)
    return {position: score for position, score in pairs if position >= 0}


def ids_for(length=LENGTH) -> torch.Tensor:
    return torch.randint(3, 97, (2, length), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("policy", [SpAtten(), SpAttenCascade(), SpAtten(priority="mean")], ids=lambda p: p.name)
def test_each_eviction_is_the_least_attended_over_the_layers(policy: Policy, executor):
    model, ids = random_model("llama"), ids_for()
    cache = EvictionCache(LAYERS, policy, K, executor=executor)
    sizes = policy.layer_entries(K, LAYERS)
    evictions = 0
    with eviction_attention(model):
        model(ids[:, : min(sizes)], cache=cache)
        for t in range(min(sizes), LENGTH):
            before = [[snapshot(state, b) for state in cache.states] for b in range(2)]
            model(ids[:, t : t + 1], cache=cache)
            for b in range(2):
                evictions += check_step(policy, sizes, before[b], [snapshot(s, b) for s in cache.states], t)
    assert evictions == 2 * sum(LENGTH - size for size in sizes)
    for state in cache.states:
        assert (state.positions == state.positions[:, :1]).all()


def check_step(policy, sizes, before, after, t) -> int:
    evictions, upstream = 0, None
    for layer, size in enumerate(sizes):
        gone = set(before[layer]) - set(after[layer])
        assert len(after[layer]) == min(t + 1, size)
        assert len(gone) == (len(before[layer]) == size)
        if layer and policy.scope == "cascade":
            assert set(after[layer]) <= set(after[layer - 1])
        if not gone:
            continue
        evictions += 1
        summed = before[: layer + 1] if policy.scope == "cascade" else before
        age = (lambda s: t - s) if policy.priority.name == "MEAN" else (lambda s: 1)
        totals = {s: sum(scores[s] for scores in summed) / age(s) for s in before[layer]}
        open_ = [s for s in before[layer] if s <= t - max(1, size // 2)]
        if policy.scope == "cascade" and upstream in before[layer]:
            assert gone == {upstream}
        else:
            assert gone == {min(open_, key=lambda s: (totals[s], s))}
        upstream = next(iter(gone))
    return evictions


@torch.no_grad()
@pytest.mark.parametrize("policy", [SpAtten(), SpAttenCascade()], ids=lambda p: p.name)
def test_executors_agree(policy):
    model, ids = random_model("gpt_neox"), ids_for()
    outs = []
    for executor in EXECUTORS:
        cache = EvictionCache(LAYERS, policy, K, executor=executor)
        with eviction_attention(model):
            parts = calls(cache, torch.ones(2, LENGTH, dtype=torch.bool))
            outs.append(torch.cat([model(ids[:, part], cache=cache).logits for part in parts], dim=1))
    torch.testing.assert_close(*outs, atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("policy", [SpAtten(), SpAttenCascade()], ids=lambda p: p.name)
def test_a_prompt_in_full_shrinks_by_all_layers(policy):
    model, ids = random_model("llama"), ids_for()
    full = EvictionCache(LAYERS, H2O(scope="layer"), 10**6)
    cache = EvictionCache(LAYERS, policy, K, prefill="full")
    with eviction_attention(model):
        model(ids, cache=full)
        model(ids, cache=cache)
        for b in range(2):
            scores = [snapshot(state, b) for state in full.states]
            allowed = set(range(LENGTH))
            for layer, size in enumerate(policy.layer_entries(K, LAYERS)):
                summed = scores[: layer + 1] if policy.scope == "cascade" else scores
                totals = {s: sum(x[s] for x in summed) for s in allowed}
                recent = {s for s in allowed if s > LENGTH - 1 - max(1, size // 2)}
                best = sorted(allowed - recent, key=lambda s: (-totals[s], -s))[: size - len(recent)]
                assert set(snapshot(cache.states[layer], b)) == recent | set(best)
                if policy.scope == "cascade":
                    allowed = recent | set(best)
        model(ids[:, :1], cache=cache)
    assert [int(s.held[0]) for s in cache.states] == policy.layer_entries(K, LAYERS)


@torch.no_grad()
def test_generation_after_a_prompt_in_full():
    model, ids = random_model("llama"), ids_for(30)
    with eviction_attention(model):
        cache = EvictionCache(LAYERS, SpAtten(), K, prefill="full")
        out = model.generate(ids, cache=cache, max_new_tokens=12, do_sample=False, pad_token_id=0)
    assert out.shape == (2, 42)
    assert all(torch.equal(state.positions, cache.states[0].positions) for state in cache.states)


@torch.no_grad()
def test_many_tokens_at_once_beyond_the_cap_are_refused():
    model = random_model("llama")
    with eviction_attention(model), pytest.raises(UserError, match="one token at a time once its cap is reached"):
        model(ids_for(), cache=EvictionCache(LAYERS, SpAtten(), K))


def test_budgets_of_layers_fall_linearly_with_the_same_mean():
    sizes = SpAttenCascade().layer_entries(100, 30)
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1]) == (150, 50)
    assert sum(sizes) == 3000
    assert SpAttenCascade(taper=0.0).layer_entries(7, 4) == [7] * 4
    assert H2O(taper=-0.5).layer_entries(10, 3) == [5, 10, 15]
    assert min(H2O(taper=0.9).layer_entries(3, 12)) == 2
