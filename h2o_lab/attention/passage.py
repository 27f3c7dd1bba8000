"""Many tokens in one compiled pass: what `compiled` does with any scan, for heads on their own.

A lane is one KV head of one sequence. For the time of the pass its keys lie in panels and its values in rows of a
workspace of k + BLOCK columns, so that a block of tokens is two matrix products with the policy's walk in between,
all in one thread and its nearest caches. Threads take turns with lanes, so that three lanes keep two threads busy.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from h2o_lab.attention.scan import (
    LAST,
    MEAN,
    NOWHERE,
    account,
    normalise,
    pattern_floor,
    place_tokens,
    to_guards,
    to_means,
    victim,
)
from h2o_lab.attention.state import LayerState
from h2o_lab.attention.tiles import COLUMNS, ROWS, dot, dot_panels, whole

BLOCK = 32
"""Tokens between two matrix products."""
PARTS = 8
"""Parts that a lane's tokens are cut into where threads go round the lanes."""
NOTHING = np.zeros((1, 1, 1), np.float32)
NO_RECORD = np.zeros((1, 1, 1), np.int32)


class Tokens(NamedTuple):
    """What is given: q [B, H * G, T, D], k and v [B, H, T, D], static [B, H, T] float32, valid [B, T] bool."""

    q: NDArray[np.float32]
    k: NDArray[np.float32]
    v: NDArray[np.float32]
    static: NDArray[np.float32]
    valid: NDArray[np.bool_]


class Entries(NamedTuple):
    """The cache: arrays of `LayerState` of the same names; keys and values are only read."""

    keys: NDArray[np.float32]
    values: NDArray[np.float32]
    positions: NDArray[np.int32]
    scores: NDArray[np.float32]
    ranks: NDArray[np.float32]
    evicted_at: NDArray[np.int32]
    seen: NDArray[np.int64]
    caps: NDArray[np.int64]


class Rule(NamedTuple):
    """The policy: its priority; whether that never changes (`fixed`), lies in `ranks`, is given for new tokens
    (`static`); whether evictions are recorded; whether a group's queries count by their largest (`by_max`)."""

    priority: int
    fixed: bool
    ranked: bool
    static: bool
    records: bool
    by_max: bool


class Work(NamedTuple):
    """Memory of the pass.

    Attributes:
        panels, rows, positions, scores, ranks: of each lane and column, what `LayerState` keeps per entry.
        owner: which of the tokens given a column holds, NOWHERE if none of them.
        offset: what is added to a column's logits: 0 while it is alive, -inf otherwise.
        guard: a column's position where a pattern has it, -1 elsewhere.
        seen: of each lane, tokens so far.
        queries, weights, mixed: of each worker, a block's queries, their logits or probabilities, their outputs.
        freed: of each worker, the columns whose entries a block has evicted.
    """

    panels: NDArray[np.float32]
    rows: NDArray[np.float32]
    positions: NDArray[np.int32]
    scores: NDArray[np.float32]
    ranks: NDArray[np.float32]
    owner: NDArray[np.int64]
    offset: NDArray[np.float32]
    guard: NDArray[np.int32]
    seen: NDArray[np.int64]
    queries: NDArray[np.float32]
    weights: NDArray[np.float32]
    mixed: NDArray[np.float32]
    freed: NDArray[np.int64]

    @classmethod
    def of(cls, lanes: int, workers: int, group: int, held: int, key_size: int, value_size: int) -> Work:
        """For at most so many entries held. What a product may meet beyond its end is zero at first: of the numbers
        that lie about in memory, some (denormal ones) would take it ten times as long."""
        width, most = whole(held + BLOCK, COLUMNS), whole(group * BLOCK, ROWS)
        broad = whole(value_size, COLUMNS)
        per_column = lanes, width
        return cls(
            panels=np.zeros((lanes, width // COLUMNS, key_size, COLUMNS), np.float32),
            rows=np.zeros((lanes, width, broad), np.float32),
            positions=np.empty(per_column, np.int32),
            scores=np.empty(per_column, np.float32),
            ranks=np.empty(per_column, np.float32),
            owner=np.empty(per_column, np.int64),
            offset=np.empty(per_column, np.float32),
            guard=np.empty(per_column, np.int32),
            seen=np.empty(lanes, np.int64),
            queries=np.zeros((workers, most, key_size), np.float32),
            weights=np.zeros((workers, most, width), np.float32),
            mixed=np.empty((workers, most, broad), np.float32),
            freed=np.empty((workers, width), np.int64),
        )


def fits(state: LayerState, normaliser: torch.Tensor | None) -> bool:
    """Whether this is such a case: each head on its own, no rolling positions."""
    return state.policy.scope == "head" and state.rotary is None and normaliser is None


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
    """See `h2o_lab.attention.executors.attend`; `fits` holds."""
    batch, heads, n, _ = k.shape
    lanes, policy = batch * heads, state.policy
    counts = valid.sum(dim=1)
    held = min(int((state.seen + counts).max()), int(state.caps.k.max()))
    ranks = state.static if state.static is not None else state.ranking
    order = turns(lanes, numba.get_num_threads())
    out = torch.empty(*q.shape[:3], v.shape[-1])
    slots = np.full((batch, heads, n), NOWHERE, np.int64)
    _passage(
        Tokens(
            q.float().contiguous().numpy(),
            k.float().contiguous().numpy(),
            v.float().contiguous().numpy(),
            static.contiguous().numpy() if static is not None else NOTHING,
            valid.contiguous().numpy(),
        ),
        Entries(
            state.keys.float().numpy(),
            state.values.float().numpy(),
            state.positions.numpy(),
            state.scores.numpy(),
            ranks.numpy() if ranks is not None else NOTHING,
            state.evicted_at.numpy() if state.evicted_at is not None else NO_RECORD,
            state.seen.numpy(),
            state.caps.table,
        ),
        Rule(
            int(policy.priority),
            policy.priority.fixed,
            ranks is not None,
            static is not None,
            state.evicted_at is not None,
            policy.group_reduce == "max",
        ),
        Work.of(lanes, order.shape[1], q.shape[1] // heads, held, k.shape[-1], v.shape[-1]),
        order,
        np.float32(scale),
        slots,
        out.numpy(),
    )
    place_tokens(state, k.contiguous(), v.contiguous(), slots)
    np.add(state.seen.numpy(), counts.numpy(), out=state.seen.numpy())
    return out.to(q.dtype)


@cache
def turns(lanes: int, workers: int) -> NDArray[np.int64]:
    """Which lane each worker serves at each turn, and in which part of its tokens.

    No lane is served twice in a turn, and its parts come in order. Where lanes divide evenly, a lane is served
    whole; otherwise the last ones go round in `PARTS` parts.

    Returns:
        int64 [turns, workers, 3]: lane, part, parts; the lane is NOWHERE where a worker waits.
    """
    workers = min(workers, lanes)
    shared = workers + lanes % workers if lanes % workers else 0
    tasks = [(lane, 0, 1) for lane in range(lanes - shared)]
    tasks += [(lanes - shared + lane, part, PARTS) for part in range(PARTS) for lane in range(shared)]
    tasks += [(NOWHERE, 0, 1)] * (-len(tasks) % workers)
    return np.array(tasks, np.int64).reshape(-1, workers, 3)


@numba.njit(parallel=True, cache=True, error_model="numpy")
def _passage(tokens, entries, rule, work, order, scale, slots, out):
    heads, n = tokens.k.shape[1:3]
    group = tokens.q.shape[1] // heads
    blocks = (n + BLOCK - 1) // BLOCK
    for turn in range(len(order)):
        for worker in numba.prange(order.shape[1]):
            lane, part, parts = order[turn, worker]
            if lane == NOWHERE:
                continue
            b, h = lane // heads, lane % heads
            if part == 0:
                _load(entries, rule, work, lane, b, h)
            for block in range(part * blocks // parts, (part + 1) * blocks // parts):
                start, stop = block * BLOCK, min((block + 1) * BLOCK, n)
                size, held = stop - start, min(work.seen[lane], entries.caps[b, 0])
                weights, mixed = work.weights[worker], work.mixed[worker]
                _enter(tokens, entries.caps[b], rule, work, worker, lane, held, b, h, start, stop, scale)
                dot_panels(work.queries[worker], work.panels[lane], weights, group * size, held + size)
                valid = tokens.valid[b, start:stop]
                gone = _walk(valid, group, entries, rule, work, worker, lane, held, b, h)
                dot(weights, work.rows[lane], mixed, group * size, held + size)
                _leave(rule, work, worker, lane, held, gone, size)
                for g in range(group):
                    out[b, h * group + g, start:stop] = mixed[g * size : (g + 1) * size, : out.shape[3]]
            if part == parts - 1:
                _unload(entries, rule, work, lane, b, h, slots)


@numba.njit(cache=True)
def _load(entries, rule, work, lane, b, h):
    """Bring a lane's entries into the workspace."""
    work.seen[lane] = entries.seen[b]
    for i in range(min(entries.seen[b], entries.caps[b, 0])):
        _write(work, lane, i, entries.keys[b, h, i], entries.values[b, h, i])
        work.positions[lane, i] = entries.positions[b, h, i]
        work.scores[lane, i] = entries.scores[b, h, i]
        work.owner[lane, i] = NOWHERE
        if rule.ranked:
            work.ranks[lane, i] = entries.ranks[b, h, i]


@numba.njit(cache=True)
def _write(work, lane, column, key, value):
    panel, place = column // COLUMNS, column % COLUMNS
    for d in range(len(key)):
        work.panels[lane, panel, d, place] = key[d]
    for d in range(len(value)):
        work.rows[lane, column, d] = value[d]


@numba.njit(cache=True)
def _enter(tokens, caps, rule, work, worker, lane, held, b, h, start, stop, scale):
    """Put a block's tokens behind the entries held, and its queries, scaled, below each other."""
    size, group = stop - start, tokens.q.shape[1] // tokens.k.shape[1]
    now = work.seen[lane]
    for j in range(size):
        column, token = held + j, start + j
        _write(work, lane, column, tokens.k[b, h, token], tokens.v[b, h, token])
        work.positions[lane, column] = now if tokens.valid[b, token] else -1
        now += tokens.valid[b, token]
        work.scores[lane, column] = 0
        work.owner[lane, column] = token
        if rule.ranked:
            work.ranks[lane, column] = tokens.static[b, h, token] if rule.static else np.float32(0.0)
        for g in range(group):
            for d in range(tokens.q.shape[3]):
                work.queries[worker, g * size + j, d] = tokens.q[b, h * group + g, token, d] * scale
    work.offset[lane, :held] = 0
    work.offset[lane, held : held + size] = -np.inf
    work.guard[lane, : held + size] = -1
    if caps[6] > 0:
        end = held + size
        to_guards(work.guard[lane, :end], work.positions[lane, :end], caps[4], caps[5], caps[6])


@numba.njit(cache=True, error_model="numpy")
def _walk(valid, group, entries, rule, work, worker, lane, held, b, h):
    """Take a block's tokens one after the other: logits become probabilities, zero for what is not held.

    Returns:
        How many of the entries held before have gone; `work.freed` has their columns.
    """
    cap, recent, sink, share, period, first, broad = entries.caps[b]
    sink = np.int32(sink)
    positions, scores, offset = work.positions[lane], work.scores[lane], work.offset[lane]
    end = held + len(valid)
    received = np.empty(end, np.float32)
    source = scores
    if rule.ranked:
        source = work.ranks[lane]
    elif rule.fixed:
        source = np.zeros(end, np.float32)
    values = source
    if rule.priority == MEAN:
        values = np.empty(end, np.float32)
    floor = np.int32(0)
    now, alive, gone = work.seen[lane], held, 0
    for j in range(len(valid)):
        if not valid[j]:
            for g in range(group):
                work.weights[worker, g * len(valid) + j, :end] = 0
            continue
        new = held + j
        if alive == cap:
            newest = np.int32(now - recent)
            if rule.priority == MEAN:
                to_means(values, source, positions, new, np.int32(now))
            if broad > 0:
                floor = np.int32(pattern_floor(now - recent, share, period, first, broad))
            out = victim(new, positions, values, offset, work.guard[lane], newest, sink, floor)
            offset[out] = -np.inf
            if rule.records:
                entries.evicted_at[b, h, positions[out]] = now
            alive -= 1
            if out < held:
                work.freed[worker, gone] = out
                gone += 1
        offset[new] = 0
        alive += 1
        now += 1
        for g in range(group):
            row = work.weights[worker, g * len(valid) + j, :end]
            normalise(row, offset, received, new + 1, g == 0, rule.by_max, False, np.float32(0.0))
        account(scores, received, new + 1, rule.priority == LAST)
    work.seen[lane] = now
    return gone


@numba.njit(cache=True)
def _leave(rule, work, worker, lane, held, gone, size):
    """Move a block's tokens that are still held to the columns that became free."""
    free = held
    for column in range(held, held + size):
        if work.offset[lane, column] != 0:
            continue
        if gone > 0:
            gone -= 1
            target = work.freed[worker, gone]
        else:
            target = free
            free += 1
        if target == column:
            continue
        here, there = column // COLUMNS, target // COLUMNS
        for d in range(work.panels.shape[2]):
            work.panels[lane, there, d, target % COLUMNS] = work.panels[lane, here, d, column % COLUMNS]
        work.rows[lane, target] = work.rows[lane, column]
        work.positions[lane, target] = work.positions[lane, column]
        work.scores[lane, target] = work.scores[lane, column]
        work.owner[lane, target] = work.owner[lane, column]
        if rule.ranked:
            work.ranks[lane, target] = work.ranks[lane, column]


@numba.njit(cache=True)
def _unload(entries, rule, work, lane, b, h, slots):
    """Write back what changed, and name the slots of the tokens that stay."""
    for i in range(min(work.seen[lane], entries.caps[b, 0])):
        entries.positions[b, h, i] = work.positions[lane, i]
        entries.scores[b, h, i] = work.scores[lane, i]
        if rule.ranked:
            entries.ranks[b, h, i] = work.ranks[lane, i]
        if work.owner[lane, i] != NOWHERE:
            slots[b, h, work.owner[lane, i]] = i
