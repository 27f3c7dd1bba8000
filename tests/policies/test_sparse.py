"""Policies that mask what is all in memory, and those that look ahead: against the oracle, and their refusals."""

import numpy as np
import pytest
import torch

from h2o_lab.attention import Caps, EvictionCache, attend, eviction_attention
from h2o_lab.attention.feeding import column_sums
from h2o_lab.errors import UserError
from h2o_lab.policies import DropH2, GlobalH2, GlobalH2Mask, H2OOfficialMask, TopK
from h2o_lab.policies.sparse import largest
from tests.support import oracle
from tests.support.invariants import EXECUTORS, POLICIES, SPARSE, Tokens, feed, fresh
from tests.support.models import random_model
from tests.support.oracle import Rule

CAPS = [14, 9]
every_executor = pytest.mark.parametrize("executor", EXECUTORS)


def by_oracle(kind: str, tokens: Tokens, b: int, cap: int) -> torch.Tensor:
    """[H, G, T, D] of the real tokens of row b."""
    real = tokens.valid[b]
    heads = len(tokens.k[b])
    q = tokens.q[b][:, real].view(heads, -1, int(real.sum()), tokens.q.shape[-1])
    rows = [
        oracle.run_sparse(
            Rule("rest", sparse=kind), q[h], tokens.k[b, h, real], tokens.v[b, h, real], cap, tokens.scale
        )
        for h in range(heads)
    ]
    return torch.tensor(np.stack(rows))


def columns_of(tokens: Tokens) -> torch.Tensor:
    """float32 [B, H, T], full-attention column sums by position, as a first pass would give them."""
    sums = torch.full(tokens.k.shape[:3], -torch.inf)
    for b in range(len(tokens.k)):
        real = tokens.valid[b]
        q = tokens.q[b][:, real].view(tokens.k.shape[1], -1, int(real.sum()), tokens.q.shape[-1])
        for h in range(tokens.k.shape[1]):
            p = oracle.full_attention(q[h], tokens.k[b, h, real], tokens.scale)
            sums[b, h, : int(real.sum())] = torch.tensor(p.sum(axis=(0, 1)))
    return sums


@every_executor
@pytest.mark.parametrize("left", [[0, 0], [7, 0]], ids=["plain", "padded"])
def test_the_whole_text_decides_in_the_published_llama_mask(executor, left):
    tokens = Tokens.draw().padded(left, [left[0] - x for x in left])
    out = feed(fresh(GlobalH2Mask(), tokens, CAPS), tokens, executor)
    for b, cap in enumerate(CAPS):
        mine = out[b].view(2, 3, -1, 8)[:, :, tokens.valid[b]]
        torch.testing.assert_close(mine.double(), by_oracle("global_h2_mask", tokens, b, cap), atol=1e-5, rtol=0)


@every_executor
@pytest.mark.parametrize("chunks", [[60], [1] * 60, [17, 1, 42]], ids=["chunk", "steps", "mixed"])
def test_heavy_hitters_are_dropped(executor, chunks):
    tokens = Tokens.draw()
    state = fresh(DropH2(), tokens, CAPS)
    state.columns = columns_of(tokens)
    out = feed(state, tokens, executor, chunks)
    for b, cap in enumerate(CAPS):
        mine = out[b].view(2, 3, 60, 8).double()
        torch.testing.assert_close(mine, by_oracle("drop_h2", tokens, b, cap), atol=1e-5, rtol=0)


@every_executor
def test_the_official_mask_scores_by_everything_it_has_seen(executor):
    """A token that later queries attend to keeps its place, though h2o's own softmax would have renormalised."""
    tokens = Tokens.draw(batch=1, heads=1, group=1, length=200)
    state = fresh(H2OOfficialMask(), tokens, 20)
    feed(state, tokens, executor)
    companion = state.companion
    assert companion is not None
    p = oracle.full_attention(tokens.q[0], tokens.k[0, 0], tokens.scale)[0]
    for position, score in zip(companion.positions[0, 0].tolist(), companion.scores[0, 0].tolist(), strict=True):
        assert score == pytest.approx(p[:, position].sum(), abs=1e-4)
    assert len(set(companion.positions[0, 0].tolist())) == 10


def test_the_published_mask_sees_fewer_than_k_where_its_sets_overlap():
    tokens = Tokens.draw(batch=1, heads=1, group=1)
    state = fresh(H2OOfficialMask(), tokens, 14)
    feed(state, tokens, "numba")
    heavy = state.companion.visible_at(torch.arange(60)[None])[0, 0]
    assert (heavy.sum(dim=-1) == torch.arange(1, 61).clamp(max=7)).all()
    recent = torch.arange(60) > torch.arange(60)[:, None] - 8
    seen = (heavy | recent).tril().sum(dim=-1)
    assert seen.max() <= 7 + 8 - 1  # the newest token is in both
    assert seen.min() < 14


def test_largest_takes_the_last_of_equal_values():
    values = torch.tensor([[[3.0, 1.0, 3.0, 2.0, 3.0, -torch.inf]]]).expand(2, 1, 6)
    chosen = largest(values, torch.tensor([2, 4]))
    assert chosen[:, 0].int().tolist() == [[0, 0, 1, 0, 1, 0], [1, 0, 1, 1, 1, 0]]
    assert largest(values, torch.tensor([0, 9])).sum(dim=-1).tolist() == [[0], [5]]


def test_largest_is_the_head_of_a_sort():
    draw = torch.Generator().manual_seed(0)
    values = torch.randint(5, (2, 40, 9), generator=draw).float()
    values[torch.rand(values.shape, generator=draw) < 0.3] = -torch.inf
    for counts in ([1, 3], [4, 8], [9, 12]):
        chosen = largest(values, torch.tensor(counts))
        for b, count in enumerate(counts):
            for row, found in zip(values[b].tolist(), chosen[b], strict=True):
                finite = [(value, place) for place, value in enumerate(row) if value > -torch.inf]
                best = sorted(place for _, place in sorted(finite, reverse=True)[:count])
                assert found.nonzero().flatten().tolist() == best


@torch.no_grad()
@every_executor
def test_column_sums_are_those_of_full_attention(executor):
    model = random_model("llama")
    ids = torch.randint(3, 97, (2, 30), generator=torch.Generator().manual_seed(3))
    mask = torch.ones(2, 30, dtype=torch.long)
    mask[0, 22:] = 0
    with eviction_attention(model):
        sums = column_sums(model, GlobalH2(), input_ids=ids, attention_mask=mask)
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    attentions = model(ids[:1, :22], output_attentions=True).attentions
    model.set_attn_implementation(before)
    for layer, maps in zip(sums, attentions, strict=True):
        expected = maps[0].view(2, 3, 22, 22).sum(dim=(1, 2))
        torch.testing.assert_close(layer[0, :, :22], expected, atol=1e-4, rtol=0)
        assert (layer[0, :, 22:] == -torch.inf).all()


@torch.no_grad()
def test_refusals():
    model = random_model("llama")
    ids = torch.randint(3, 97, (1, 30), generator=torch.Generator().manual_seed(3))
    with pytest.raises(UserError, match="ranks by numbers from a first pass"):
        EvictionCache(3, GlobalH2(), 8)
    with eviction_attention(model):
        for policy in (GlobalH2(), DropH2()):
            known = EvictionCache(3, policy, 8, given=column_sums(model, policy, input_ids=ids))
            with pytest.raises(UserError, match="knows numbers for 30 tokens and is given more"):
                model.generate(ids, cache=known, max_new_tokens=3, pad_token_id=0)
    with pytest.raises(UserError, match="an empty cache cannot be forked"):
        EvictionCache(3, H2OOfficialMask(), 8).fork()
    cache = EvictionCache(3, GlobalH2Mask(), 8)
    with eviction_attention(model):
        model(ids, cache=cache)
        with pytest.raises(UserError, match="looks at the whole text: give it to the model in one call"):
            model(ids, cache=cache)


def test_masking_saves_no_memory():
    tokens = Tokens.draw()
    for policy in (TopK(), POLICIES["topk_h2"][0], H2OOfficialMask()):
        state = fresh(policy, tokens, 8)
        attend(tokens.q, tokens.k, tokens.v, state, scale=1.0)
        assert state.held.tolist() == [60, 60]
        assert Caps.of(policy, [8]).budget.tolist() == [8]


@every_executor
@pytest.mark.parametrize("name", SPARSE)
def test_nothing_but_padding(name, executor):
    tokens = Tokens.draw(batch=1, length=4)
    tokens.valid[:] = False
    state = fresh(POLICIES[name][0], tokens, 3)
    feed(state, tokens, executor)
    assert state.held.tolist() == [0]
