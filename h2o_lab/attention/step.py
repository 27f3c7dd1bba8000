"""One token for every sequence, in one compiled pass over the cache as it lies: only the new entry is copied.

What `passage` does for many tokens, for the case that decoding is made of. A lane is one KV head of one
sequence: its victim's slot is taken by the new token, its query heads share every load of keys and values, and
the scores grow by what they gave. Heads that keep the same tokens find the same victim, each for itself, and
share what they gave.
"""

from __future__ import annotations

import numba
import numpy as np
import torch

from h2o_lab.attention.arrays import NOTHING, Angles, Entries, Rule, Tokens
from h2o_lab.attention.rolling import moved_logits, places_by_age, rotate
from h2o_lab.attention.rules import LAST, MEAN, account, normalise, pattern_floor, to_guards, to_means, victim
from h2o_lab.attention.simd import FAST
from h2o_lab.attention.state import LayerState

TILE = 64
"""Entries that all query heads of a group read before the next ones: their keys stay in the nearest cache."""


def fits(q: torch.Tensor, state: LayerState, normaliser: torch.Tensor | None) -> bool:
    """Whether this is such a case: one token, all in float32."""
    alike = q.dtype == state.keys.dtype == state.values.dtype == torch.float32
    return q.shape[2] == 1 and alike and normaliser is None


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
    shared = state.policy.scope != "head"
    _step(
        Tokens.of(q, k, v, valid, static, None),
        Entries.of(state),
        Rule.of(state, static, None),
        Angles.of(state, valid, 0),
        np.zeros(state.positions.shape, np.float32) if shared else NOTHING,
        shared,
        np.float32(scale),
        out.numpy(),
    )
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


@numba.njit(parallel=True, cache=True)
def _step(tokens, entries, rule, angles, gains, shared, scale, out):
    batch, heads = entries.keys.shape[:2]
    for lane in numba.prange(batch * heads):
        b, h = lane // heads, lane % heads
        if tokens.valid[b, 0]:  # in a function: Numba may drop what prange writes to the arrays of a tuple
            _serve(tokens, entries, rule, angles, gains, shared, scale, out, b, h)
    for b in range(batch):
        if tokens.valid[b, 0]:
            _count(entries, rule, gains, shared, b)


@numba.njit(cache=True, error_model="numpy")
def _serve(tokens, entries, rule, angles, gains, shared, scale, out, b, h):
    """What one lane does: make room, insert, attend, account."""
    heads = tokens.k.shape[1]
    group = tokens.q.shape[1] // heads
    now = entries.seen[b]
    slot = _slot(entries, rule, now, b, h)
    end = max(min(now, entries.caps[b, 0]), slot + 1)
    keys, values, positions = entries.keys[b, h], entries.values[b, h], entries.positions[b, h]
    keys[slot] = tokens.k[b, h, 0]
    values[slot] = tokens.v[b, h, 0]
    positions[slot] = np.int32(now)
    entries.scores[b, h, slot] = np.float32(0.0)
    if rule.ranked:
        entries.ranks[b, h, slot] = tokens.static[b, h, 0] if rule.static else np.float32(0.0)
    weights = np.empty((group, end), np.float32)
    received, alive = np.empty(end, np.float32), np.zeros(end, np.float32)
    if rule.rolls:
        _rolled_products(weights, tokens.q, keys, positions, alive, angles, end, scale, b, h)
    else:
        for start in range(0, end, TILE):
            for g in range(group):
                query = tokens.q[b, h * group + g, 0]
                _products(weights[g], query, keys, start, min(start + TILE, end), scale)
    for g in range(group):
        normalise(weights[g], alive, received, end, g == 0, rule.by_max, False, np.float32(0.0))
    if shared:
        gains[b, h, :end] = received
    else:
        account(entries.scores[b, h], received, end, rule.priority == LAST)
    for start in range(0, end, TILE):
        for g in range(group):
            _mix(out[b, h * group + g, 0], weights[g], values, start, min(start + TILE, end))


@numba.njit(cache=True, error_model="numpy")
def _slot(entries, rule, now, b, h):
    """Where the new token goes: behind the entries held, or in the place of one."""
    cap, recent, sink, share, period, first, broad = entries.caps[b]
    if now < cap:
        return now
    positions = entries.positions[b, h]
    source = entries.scores[b, h]
    if rule.ranked:
        source = entries.ranks[b, h]
    elif rule.fixed:
        source = np.zeros(cap, np.float32)
    if rule.priority == MEAN:
        means = np.empty(cap, np.float32)
        to_means(means, source, positions, cap, np.int32(now))
        source = means
    guard = np.full(cap, -1, np.int32)
    floor = np.int32(0)
    if broad > 0:
        to_guards(guard, positions, period, first, broad)
        floor = np.int32(pattern_floor(now - recent, share, period, first, broad))
    alive = np.zeros(cap, np.float32)
    out = victim(cap, positions, source, alive, guard, np.int32(now - recent), np.int32(sink), floor)
    if rule.records:
        entries.evicted_at[b, h, positions[out]] = now
    return out


@numba.njit(cache=True)
def _rolled_products(weights, q, keys, positions, alive, angles, end, scale, b, h):
    """The same as `_products` for all queries of a lane, by virtual positions."""
    group, size = len(weights), q.shape[3]
    rotated, turned = np.empty((group, size), np.float32), np.empty(size, np.float32)
    for g in range(group):
        rotate(rotated[g], q[b, h * group + g, 0], angles.cos[end - 1], angles.sin[end - 1])
        for d in range(size):
            rotated[g, d] *= scale
    places, all_of_them = np.empty(end, np.int64), np.ones(end, np.bool_)
    places_by_age(places, positions[:end])
    moved_logits(weights, rotated, 0, 1, end, all_of_them, alive, keys, places, angles, turned)


@numba.njit(cache=True)
def _count(entries, rule, gains, shared, b):
    """Count a sequence's token; where its heads keep the same, let all grow by what they received together."""
    entries.seen[b] += 1
    if shared:
        heads = gains.shape[1]
        end = min(entries.seen[b], entries.caps[b, 0])
        for h in range(1, heads):
            account(gains[b, 0], gains[b, h], end, False)
        for h in range(heads):
            account(entries.scores[b, h], gains[b, 0], end, rule.priority == LAST)
