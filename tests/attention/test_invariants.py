"""The invariants of the contract, over every policy and executor."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from h2o_lab.attention import Caps
from tests.support import oracle
from tests.support.invariants import (
    EVICTING,
    EXECUTORS,
    POLICIES,
    SPARSE,
    N,
    Tokens,
    expected,
    feed,
    fresh,
    kept,
    static_of,
)

CAP = 14
TOLERANCE = 1e-5

every_executor = pytest.mark.parametrize("executor", EXECUTORS)
every_policy = pytest.mark.parametrize("name", POLICIES)
every_evicting = pytest.mark.parametrize("name", EVICTING)


@every_executor
@every_policy
@pytest.mark.parametrize("chunks", [[60], [1] * 60, [17, 1, 42]], ids=["chunk", "steps", "mixed"])
def test_equals_the_contract_and_a_dense_mask(name, executor, chunks):
    tokens = Tokens.draw()
    state = fresh(POLICIES[name][0], tokens, CAP)
    out = feed(state, tokens, executor, chunks).view(2, 2, 3, 60, 8).double()
    for b in range(2):
        right, history, scores = expected(name, tokens, b, CAP)
        torch.testing.assert_close(out[b], right, atol=TOLERANCE, rtol=0)
        if name in SPARSE:
            assert kept(state, b) == list(range(60))
            continue
        for h in range(2):
            query = tokens.q[b].view(2, 3, 60, 8)[h]
            masked = oracle.dense(query, tokens.k[b, h], tokens.v[b, h], history[h], tokens.scale)
            assert kept(state, b, h) == history[h][-1]
            torch.testing.assert_close(out[b, h], torch.tensor(masked), atol=TOLERANCE, rtol=0)
            held = {
                int(p): float(s) for p, s in zip(state.positions[b, h], state.scores[b, h], strict=True) if p >= 0
            }
            assert held == pytest.approx(scores[h], abs=1e-4)


@every_executor
@every_evicting
def test_cap_and_protected_sets_at_every_step(name, executor):
    policy, rule = POLICIES[name]
    tokens = Tokens.draw()
    state = fresh(policy, tokens, CAP)
    recent, sink, _ = rule.sizes(CAP)
    for t in range(60):
        feed(state, tokens.columns(slice(t, t + 1)), executor)
        for b in range(2):
            for h in range(2):
                held = kept(state, b, h)
                assert len(held) == min(t + 1, CAP + rule.extra)
                assert set(range(max(0, t + 1 - recent), t + 1)) <= set(held)
                assert set(range(min(sink, t + 1))) <= set(held)
                assert rule.protected(t, CAP, N) <= set(held)
    assert state.keys.shape[2] == CAP + rule.extra


@every_executor
@pytest.mark.parametrize("name", [name for name in POLICIES if name != "h2o_official_mask"])  # k/2 + k/2 overlap
def test_no_eviction_below_the_cap_equals_full_attention(name, executor):
    tokens = Tokens.draw(length=40)
    out = feed(fresh(POLICIES[name][0], tokens, 40), tokens, executor)
    full = scaled_dot_product_attention(tokens.q, tokens.k, tokens.v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(out, full, atol=TOLERANCE, rtol=0)


@every_executor
@every_policy
def test_causality(name, executor):
    tokens, other = Tokens.draw(), Tokens.draw()
    for tensor in (other.q, other.k, other.v):
        tensor[:, :, 33] += 3
    outs = [feed(fresh(POLICIES[name][0], x, CAP), x, executor) for x in (tokens, other)]
    assert torch.equal(outs[0][:, :, :33], outs[1][:, :, :33])
    assert not torch.allclose(outs[0][:, :, 33:], outs[1][:, :, 33:])


@every_executor
@every_policy
def test_fork_equals_recompute(name, executor):
    policy = POLICIES[name][0]
    tokens, other = Tokens.draw(seed=1), Tokens.draw(seed=2)
    state = fresh(policy, tokens, CAP)
    feed(state, tokens.columns(slice(0, 30)), executor)
    forked = state.select(torch.tensor([1, 1, 0]))
    ends = other.rows(torch.tensor([0, 1, 0])).columns(slice(0, 20))
    out = feed(forked, ends, executor)
    again = fresh(policy, ends, CAP)
    starts = tokens.rows(torch.tensor([1, 1, 0])).columns(slice(0, 30))
    feed(again, starts, executor)
    torch.testing.assert_close(out, feed(again, ends, executor), atol=TOLERANCE, rtol=0)
    untouched = feed(state, tokens.columns(slice(30, 60)), executor)
    whole = feed(fresh(policy, tokens, CAP), tokens, executor)
    torch.testing.assert_close(untouched, whole[:, :, 30:], atol=TOLERANCE, rtol=0)


@every_executor
@every_policy
def test_a_batch_equals_its_rows_with_their_own_caps(name, executor):
    policy = POLICIES[name][0]
    tokens = Tokens.draw(batch=3)
    caps = [9, 14, 23]
    together = feed(fresh(policy, tokens, caps), tokens, executor)
    for b, cap in enumerate(caps):
        row = tokens.rows(slice(b, b + 1))
        alone = feed(fresh(policy, row, cap), row, executor)
        torch.testing.assert_close(together[b : b + 1], alone, atol=TOLERANCE, rtol=0)


@every_executor
@every_policy
def test_padding_changes_nothing(name, executor):
    policy = POLICIES[name][0]
    tokens = Tokens.draw()
    left, right = [7, 0], [2, 9]
    padded = tokens.padded(left, right)
    plain, wide = fresh(policy, tokens, CAP), fresh(policy, tokens, CAP)
    expected = feed(plain, tokens, executor)
    out = feed(wide, padded, executor, [20, 49])
    for b, first in enumerate(left):
        torch.testing.assert_close(out[b, :, first : first + 60], expected[b], atol=TOLERANCE, rtol=0)
        assert kept(wide, b) == kept(plain, b)
    assert wide.seen.tolist() == [60, 60]


@every_executor
@pytest.mark.parametrize(
    "name", ["local", "h2o", "h2_only", "streaming", "random", "h2o_sinks", "h2o_mean", "strided_h2", "knorm"]
)
def test_scores_sum_to_query_rows_less_what_evicted_entries_took(name, executor):
    tokens = Tokens.draw(batch=1, heads=1)
    state = fresh(POLICIES[name][0], tokens, CAP)
    for t in range(60):
        before = dict(zip(state.positions[0, 0].tolist(), state.scores[0, 0].tolist(), strict=True))
        feed(state, tokens.columns(slice(t, t + 1)), executor)
        gone = set(before) - set(kept(state)) - {-1}
        assert len(gone) == (1 if t >= CAP else 0)
        carried = sum(score for p, score in before.items() if p >= 0 and p not in gone)
        held = state.scores[0, 0][state.positions[0, 0] >= 0].sum().item()
        assert held == pytest.approx(carried + 3, abs=1e-3)


@every_executor
@every_policy
def test_same_seed_same_result(name, executor):
    tokens = Tokens.draw()
    outs = [feed(fresh(POLICIES[name][0], tokens, CAP), tokens, executor) for _ in range(2)]
    assert torch.equal(outs[0], outs[1])


@every_policy
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_with_float32_scores(name, dtype):
    tokens = Tokens.draw(dtype=dtype)
    results = []
    for executor in EXECUTORS:
        state = fresh(POLICIES[name][0], tokens, CAP)
        out = feed(state, tokens, executor)
        assert out.dtype == state.keys.dtype == dtype
        assert state.scores.dtype == torch.float32
        results.append((out.float(), [kept(state, b, h) for b in range(2) for h in range(2)]))
    torch.testing.assert_close(results[0][0], results[1][0], atol=2e-2, rtol=0)
    assert results[0][1] == results[1][1]


@every_executor
def test_scores_keep_accumulating_in_half_precision(executor):
    """600 + 0.2 is 600 in float16: with one sink that takes most attention, its score must pass 2048."""
    tokens = Tokens.draw(batch=1, heads=1, group=1, length=2300, dtype=torch.float16)
    tokens.k[:] = 0
    tokens.q[:] = 1
    tokens.k[:, :, 0] = 4
    state = fresh(POLICIES["h2o"][0], tokens, 4)
    feed(state, tokens, executor)
    assert state.scores.max() > 2100


def test_any_non_decreasing_h_evicts_the_same_entry():
    """F(T) = h(sum of scores in T): the entry whose removal costs least is the one with the least score."""
    scores = torch.rand(200, 12, generator=torch.Generator().manual_seed(0)).double()
    rest = scores.sum(dim=1, keepdim=True) - scores
    victims = scores.argmin(dim=1)
    for h in (torch.sqrt, torch.log1p, torch.square, lambda x: x.clamp(max=5), torch.floor, torch.zeros_like):
        value = h(rest)
        assert torch.equal(value.gather(1, victims[:, None]).squeeze(1), value.amax(dim=1))


@every_evicting
def test_shrinking_equals_evicting_one_by_one(name):
    """prefill: full. The rule is applied after the last token until k entries are left."""
    policy, rule = POLICIES[name]
    tokens = Tokens.draw()
    for executor in EXECUTORS:
        state = fresh(policy, tokens, CAP)
        state.caps = Caps.unbounded(2)
        feed(state, tokens, executor)
        shrunk = state.shrunk(Caps.of(policy, [CAP, 9], [N, N]))
        static = static_of(policy, tokens, None)
        if static is not None and rule.together:
            static = static.sum(dim=1, keepdim=True).expand_as(static)
        for b, cap in enumerate([CAP, 9]):
            for h in range(2):
                scores = {
                    int(p): float(s)
                    for p, s in zip(state.positions[b, h], state.scores[b, h], strict=True)
                    if p >= 0
                }
                left = sorted(scores)
                while len(left) > cap + rule.extra:
                    # the last token has come in: the rule is that of the step before the next
                    open_ = set(left) - rule.protected(59, cap, N) - {59}
                    numbers = static[b, h] if static is not None else None
                    left.remove(min(open_, key=lambda s: (oracle.value(rule, s, 60, scores, numbers), s)))
                assert kept(shrunk, b, h) == left
        assert shrunk.keys.shape[2] == CAP + rule.extra
        more = feed(shrunk, Tokens.draw(seed=3), executor)
        assert torch.isfinite(more).all()
        assert len(kept(shrunk, 1)) == 9 + rule.extra
