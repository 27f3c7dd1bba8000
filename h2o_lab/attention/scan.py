"""The policy as a compiled scan over a block of tokens: evict, insert, normalise, account.

Columns 0 .. held-1 are the entries held before the block, column held + j is token j of the block. Everything
here works on columns; keys and values are only copied. Parallel over lanes: a lane is one KV head of one sequence,
or one sequence where its heads keep the same tokens (L lanes a sequence: all heads, or 1).
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from h2o_lab.attention.rolling import Rolling, moved_logits, shift
from h2o_lab.attention.simd import FAST, exp, larger, smaller
from h2o_lab.attention.state import NEVER, LayerState
from h2o_lab.policies import Priority

MEAN, LAST = int(Priority.MEAN), int(Priority.LAST)
NOWHERE = -1
FAR = 2**31 - 1


class Columns(NamedTuple):
    """What is known of each column.

    Attributes:
        positions: int32 [B, L, held + n]; EMPTY marks columns that hold nothing.
        scores: float32 [B, L, held + n], changed in place.
        ranks: float32 [B, L, held + n], numbers that rank in place of the scores, or None.
        died: int32 [B, L, held + n] out: the position of the token that a column made room for, or NEVER.
        slots: int64 [B, L, n] out: the slot each token of the block ends up in, NOWHERE if it did not survive.
    """

    positions: torch.Tensor
    scores: torch.Tensor
    ranks: torch.Tensor | None
    died: torch.Tensor
    slots: torch.Tensor


def run(
    weights: torch.Tensor,
    columns: Columns,
    state: LayerState,
    valid: torch.Tensor,
    held: int,
    normaliser: torch.Tensor | None,
    rolling: Rolling | None,
) -> None:
    """Walk one block.

    Args:
        weights: float32 [B, H, G, n, held + n], logits in, probabilities out.
        columns: see there.
        state: the layer's cache, for its caps and policy; not changed.
        valid: bool [B, n].
        held: number of columns that come from the cache.
        normaliser: float32 [B, H, G, n], see the reference executor; the weights are then relative to it.
        rolling: what virtual positions need, or None.
    """
    policy = state.policy
    nothing = np.zeros((1, 1, 1), np.float32)
    _scan(
        weights.numpy(),
        columns.positions.numpy(),
        columns.scores.numpy(),
        columns.ranks.numpy() if columns.ranks is not None else nothing,
        columns.died.numpy(),
        columns.slots.numpy(),
        valid.numpy(),
        state.seen.numpy(),
        state.caps.table,
        held,
        int(policy.priority),
        policy.priority.fixed,
        columns.ranks is not None,
        policy.group_reduce == "max",
        normaliser is not None,
        normaliser.numpy() if normaliser is not None else np.zeros((1, 1, 1, 1), np.float32),
        rolling is not None,
        *(rolling or Rolling.nothing()).arrays(),
    )


def store(state: LayerState, k: torch.Tensor, v: torch.Tensor, columns: Columns, held: int) -> None:
    """Put what survived the block into the cache: new scores of old entries, and new tokens into freed slots."""
    heads = k.shape[1]
    slots, positions, scores, died = (
        x.expand(-1, heads, -1).contiguous()
        for x in (columns.slots, columns.positions, columns.scores, columns.died)
    )
    if state.evicted_at is not None:
        row, head, column = (died < NEVER).nonzero(as_tuple=True)
        state.evicted_at[row, head, positions[row, head, column].long()] = died[row, head, column]
    state.scores[:, :, :held] = scores[:, :, :held]
    place_tokens(state, k, v, slots.numpy())
    _place(state.positions.numpy(), positions.numpy(), slots.numpy(), held)
    _place(state.scores.numpy(), scores.numpy(), slots.numpy(), held)
    if columns.ranks is not None and state.static is not None:
        ranks = columns.ranks.expand(-1, heads, -1).contiguous()
        _place(state.static.numpy(), ranks.numpy(), slots.numpy(), held)


def place_tokens(state: LayerState, k: torch.Tensor, v: torch.Tensor, slots: NDArray[np.int64]) -> None:
    """Copy keys and values [B, H, n, D] into slots, int64 [B, H, n], but where the slot is NOWHERE."""
    _copy(_bytes(state.keys), _bytes(k), slots)
    _copy(_bytes(state.values), _bytes(v), slots)


def _bytes(tensor: torch.Tensor) -> np.ndarray:
    return tensor.view(torch.uint8).numpy()


@numba.njit(fastmath=FAST, cache=True, error_model="numpy")
def _open(i, offset, positions, guard, newest, sink, floor):
    """Whether column i is alive and unprotected; guard is its position where a pattern has it, -1 elsewhere."""
    return (offset[i] == 0) & (positions[i] <= newest) & (positions[i] >= sink) & (guard[i] < floor)


@numba.njit(fastmath=FAST, cache=True, error_model="numpy")
def victim(end, positions, values, offset, guard, newest, sink, floor):
    """The living, unprotected column with the smallest value, then the smallest position."""
    smallest = np.float32(np.inf)
    for i in range(end):
        open_ = _open(i, offset, positions, guard, newest, sink, floor)
        smallest = smaller(values[i] if open_ else np.float32(np.inf), smallest)
    oldest = np.int32(FAR)
    for i in range(end):
        open_ = _open(i, offset, positions, guard, newest, sink, floor)
        oldest = min(oldest, positions[i] if open_ & (values[i] <= smallest) else np.int32(FAR))
    at = np.int32(0)
    for i in range(end):
        at = max(at, np.int32(i) if (positions[i] == oldest) & (offset[i] == 0) else np.int32(0))
    if _open(at, offset, positions, guard, newest, sink, floor):
        return at
    for i in range(end):  # the values are NaN: any open column keeps the cap
        if _open(i, offset, positions, guard, newest, sink, floor):
            return np.int32(i)
    return at


@numba.njit(fastmath=FAST, cache=True, error_model="numpy")
def to_means(means, scores, positions, end, seen):
    for i in range(end):
        means[i] = scores[i] / np.float32(seen - positions[i])


@numba.njit(cache=True)
def to_guards(guard, positions, period, first, width):
    for i in range(len(guard)):
        place = positions[i] % period
        inside = (positions[i] >= 0) & (place >= first) & (place < first + width)
        guard[i] = positions[i] if inside else -1


@numba.njit(cache=True)
def pattern_floor(newest, share, period, first, width):
    """See `h2o_lab.policies.protection.oldest_protected`, for one number; width is at least 1."""
    members = 0
    if newest >= 0:
        members = (newest // period) * width + min(max(newest % period - first + 1, 0), width)
    index = max(members - share, 0)
    return (index // width) * period + first + index % width


@numba.njit(fastmath=FAST, cache=True, error_model="numpy")
def normalise(row, offset, received, end, first, by_max, relative, total_log):
    """Softmax over the living columns of row[:end] in place, zeros behind; adds up what they received.

    With `relative`, probabilities are relative to exp(total_log) in place of the sum over the living.
    """
    top = total_log
    if not relative:
        top = np.float32(-np.inf)
        for i in range(end):
            top = larger(row[i] + offset[i], top)
    total = np.float32(0.0)
    for i in range(end):
        e = exp(row[i] + offset[i] - top)
        row[i] = e
        total += e
    share = np.float32(1.0) if relative else np.float32(1.0) / total
    if first:
        for i in range(end):
            row[i] *= share
            received[i] = row[i]
    elif by_max:
        for i in range(end):
            row[i] *= share
            received[i] = larger(row[i], received[i])
    else:
        for i in range(end):
            row[i] *= share
            received[i] += row[i]
    row[end:] = np.float32(0.0)


@numba.njit(fastmath=FAST, cache=True, error_model="numpy")
def account(scores, received, end, replace):
    for i in range(end):
        scores[i] = received[i] if replace else scores[i] + received[i]


@numba.njit(parallel=True, cache=True)
def _scan(
    weights,
    positions,
    scores,
    ranks,
    died,
    slots,
    valid,
    seen,
    caps,
    held,
    priority,
    fixed,
    has_ranks,
    by_max,
    relative,
    normaliser,
    rolls,
    raw,
    queries,
    places,
    cos,
    sin,
):
    batch, heads, group, n, width = weights.shape
    lanes = positions.shape[1]
    together = heads // lanes
    for lane in numba.prange(batch * lanes):
        b, own = lane // lanes, lane % lanes
        first_head, last_head = own * together, (own + 1) * together
        cap, recent, sink = caps[b, 0], caps[b, 1], np.int32(caps[b, 2])
        share, period, first, broad = caps[b, 3], caps[b, 4], caps[b, 5], caps[b, 6]
        at = positions[b, own]
        score = scores[b, own]
        source = score
        if has_ranks:
            source = ranks[b, own]
        elif fixed:
            source = np.zeros(width, np.float32)
        values = source
        if priority == MEAN:
            values = np.empty(width, np.float32)
        guard = np.full(width, -1, np.int32)
        floor = np.int32(0)
        if broad > 0:
            to_guards(guard, at, period, first, broad)
        # what is added to a column's logits: 0 while it is alive, -inf otherwise
        offset = np.full(width, -np.inf, np.float32)
        moved = np.zeros(width, np.bool_)
        turned = np.empty(raw.shape[3], np.float32)
        freed = np.empty(held + n, np.int64)
        received = np.empty(width, np.float32)
        alive = 0
        for i in range(held):
            if at[i] >= 0:
                offset[i] = 0
                alive += 1
        first_free = alive
        gone = 0
        now = seen[b]
        for j in range(n):
            if not valid[b, j]:
                for h in range(first_head, last_head):
                    for g in range(group):
                        weights[b, h, g, j, :] = 0
                continue
            if alive == cap:
                if priority == MEAN:
                    to_means(values, source, at, held + j, np.int32(now))
                if broad > 0:
                    floor = np.int32(pattern_floor(now - recent, share, period, first, broad))
                out = victim(held + j, at, values, offset, guard, np.int32(now - recent), sink, floor)
                offset[out] = -np.inf
                died[b, own, out] = now
                alive -= 1
                if out < held:
                    freed[gone] = out
                    gone += 1
                if rolls:
                    shift(at[out], held + j, at, offset, places[b, own], moved)
            offset[held + j] = 0
            alive += 1
            now += 1
            end = held + j + 1
            for h in range(first_head, last_head):
                if rolls:
                    moved_logits(
                        weights[b, h],
                        j,
                        end,
                        moved,
                        offset,
                        queries[b, h],
                        raw[b, h],
                        places[b, own],
                        cos,
                        sin,
                        turned,
                    )
                for g in range(group):
                    row = weights[b, h, g, j]
                    total_log = normaliser[b, h, g, j] if relative else np.float32(0.0)
                    normalise(row, offset, received, end, g == 0, by_max, relative, total_log)
                account(score, received, end, priority == LAST and h == first_head)
        for j in range(n):
            if offset[held + j] != 0:
                slots[b, own, j] = NOWHERE
            elif gone > 0:
                gone -= 1
                slots[b, own, j] = freed[gone]
            else:
                slots[b, own, j] = first_free
                first_free += 1


@numba.njit(parallel=True, cache=True)
def _copy(target, source, slots):
    """target[b, h, slots[b, h, j]] = source[b, h, j], row by row, for tokens that survived."""
    batch, heads, n = slots.shape
    for lane in numba.prange(batch * heads):
        b, h = lane // heads, lane % heads
        for j in range(n):
            if slots[b, h, j] >= 0:
                target[b, h, slots[b, h, j]] = source[b, h, j]


@numba.njit(cache=True)
def _place(target, source, slots, held):
    """The same for one number per entry; column held + j of source belongs to token j."""
    batch, heads, n = slots.shape
    for b in range(batch):
        for h in range(heads):
            for j in range(n):
                if slots[b, h, j] >= 0:
                    target[b, h, slots[b, h, j]] = source[b, h, held + j]
