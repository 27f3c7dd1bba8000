"""One token for every sequence, in one compiled pass over the cache as it lies: only the new entry is copied.

What `compiled` does for a block of tokens, for the case that decoding is made of. A lane is one KV head of one
sequence: its victim's slot is taken by the new token, its query heads share every load of keys and values, and the
scores grow by what they gave.
"""

from __future__ import annotations

import numba
import numpy as np
import torch

from h2o_lab.attention.scan import LAST, MEAN, account, normalise, pattern_floor, to_guards, to_means, victim
from h2o_lab.attention.simd import FAST
from h2o_lab.attention.state import LayerState

TILE = 64
"""Entries that all query heads of a group read before the next ones: their keys stay in the nearest cache."""
NOTHING = np.zeros((1, 1, 1), np.float32)


def fits(q: torch.Tensor, state: LayerState, normaliser: torch.Tensor | None) -> bool:
    """Whether this is such a case: one token, float32, each head on its own, no rolling and no record."""
    return (
        q.shape[2] == 1
        and q.dtype == state.keys.dtype == torch.float32
        and state.policy.scope == "head"
        and state.rotary is None
        and state.evicted_at is None
        and normaliser is None
    )


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    state: LayerState,
    *,
    scale: float,
    valid: torch.Tensor,
    static: torch.Tensor | None,
) -> torch.Tensor:
    """See `h2o_lab.attention.executors.attend`; T is 1, and `fits` holds."""
    out = torch.zeros(*q.shape[:3], v.shape[-1])
    ranks = state.static if state.static is not None else state.ranking
    policy = state.policy
    _step(
        q.contiguous().numpy(),
        k.contiguous().numpy(),
        v.contiguous().numpy(),
        state.keys.numpy(),
        state.values.numpy(),
        state.positions.numpy(),
        state.scores.numpy(),
        ranks.numpy() if ranks is not None else NOTHING,
        static.contiguous().numpy() if static is not None else NOTHING,
        valid.contiguous().numpy(),
        state.seen.numpy(),
        state.caps.table,
        np.float32(scale),
        int(policy.priority),
        policy.priority.fixed,
        ranks is not None,
        static is not None,
        policy.group_reduce == "max",
        out.numpy(),
    )
    state.seen = state.seen + valid[:, 0]
    return out


@numba.njit(fastmath=FAST, cache=True, error_model="numpy")
def _products(row, query, keys, start, end, scale):
    """row[i] = scale * query . keys[i]."""
    for i in range(start, end):
        total = np.float32(0.0)
        for d in range(len(query)):
            total += query[d] * keys[i, d]
        row[i] = total * scale


@numba.njit(fastmath=FAST, cache=True, error_model="numpy")
def _mix(out, row, values, start, end):
    """out += row @ values."""
    for i in range(start, end):
        share = row[i]
        for d in range(len(out)):
            out[d] += share * values[i, d]


@numba.njit(parallel=True, cache=True, error_model="numpy")
def _step(
    q,
    k,
    v,
    keys,
    values,
    positions,
    scores,
    ranks,
    static,
    valid,
    seen,
    caps,
    scale,
    priority,
    fixed,
    has_ranks,
    has_static,
    by_max,
    out,
):
    batch, heads = keys.shape[:2]
    group = q.shape[1] // heads
    for lane in numba.prange(batch * heads):
        b, h = lane // heads, lane % heads
        if not valid[b, 0]:
            continue
        cap, recent, sink = caps[b, 0], caps[b, 1], np.int32(caps[b, 2])
        share, period, first, broad = caps[b, 3], caps[b, 4], caps[b, 5], caps[b, 6]
        now = seen[b]
        held = min(now, cap)
        at, score = positions[b, h], scores[b, h]
        alive = np.zeros(held + 1, np.float32)
        slot = held
        if held == cap:
            source = score
            if has_ranks:
                source = ranks[b, h]
            elif fixed:
                source = np.zeros(held, np.float32)
            if priority == MEAN:
                means = np.empty(held, np.float32)
                to_means(means, source, at, held, np.int32(now))
                source = means
            guard = np.full(held, -1, np.int32)
            floor = np.int32(0)
            if broad > 0:
                to_guards(guard, at, period, first, broad)
                floor = np.int32(pattern_floor(now - recent, share, period, first, broad))
            slot = victim(held, at, source, alive, guard, np.int32(now - recent), sink, floor)
        end = max(held, slot + 1)
        keys[b, h, slot] = k[b, h, 0]
        values[b, h, slot] = v[b, h, 0]
        at[slot] = np.int32(now)
        score[slot] = np.float32(0.0)
        if has_ranks:
            ranks[b, h, slot] = static[b, h, 0] if has_static else np.float32(0.0)
        weights = np.empty((group, end), np.float32)
        received = np.empty(end, np.float32)
        for start in range(0, end, TILE):
            for g in range(group):
                _products(weights[g], q[b, h * group + g, 0], keys[b, h], start, min(start + TILE, end), scale)
        for g in range(group):
            normalise(weights[g], alive, received, end, g == 0, by_max, False, np.float32(0.0))
        account(score, received, end, priority == LAST)
        for start in range(0, end, TILE):
            for g in range(group):
                _mix(out[b, h * group + g, 0], weights[g], values[b, h], start, min(start + TILE, end))
