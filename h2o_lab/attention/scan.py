"""The policy as a compiled scan over a block of tokens: evict, insert, normalise, account.

Columns 0 .. held-1 are the entries held before the block, column held + j is token j of the block. Everything
here works on columns; keys and values are only copied. Parallel over sequences and KV heads.
"""

from __future__ import annotations

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from h2o_lab.attention.state import LayerState
from h2o_lab.policies import Priority

ACCUMULATED, MEAN, LAST, STATIC = (int(p) for p in Priority)
FAST = {"nnan", "nsz", "arcp", "contract", "afn", "reassoc"}
NOWHERE = -1
FAR = 2**31 - 1


def run(weights, positions, scores, ranks, slots, state: LayerState, valid, held: int) -> None:
    """Walk one block.

    Args:
        weights: float32 [B, H, G, n, held + n], logits in, probabilities out.
        positions: int32 [B, H, held + n]; EMPTY marks columns that hold nothing.
        scores: float32 [B, H, held + n], changed in place.
        ranks: float32 [B, H, held + n], static priorities, or None.
        slots: int64 [B, H, n] out: the slot each token of the block ends up in, NOWHERE if it did not survive.
        state: the layer's cache, for its caps and policy; not changed.
        valid: bool [B, n].
        held: number of columns that come from the cache.
    """
    _scan(
        weights.numpy(),
        positions.numpy(),
        scores.numpy(),
        ranks.numpy() if ranks is not None else np.zeros((1, 1, 1), np.float32),
        slots.numpy(),
        valid.numpy(),
        state.seen.numpy(),
        state.caps.k.numpy(),
        state.caps.recent.numpy(),
        state.caps.sink.numpy(),
        held,
        int(state.policy.priority),
        ranks is not None,
        state.policy.group_reduce == "max",
    )


def store(state: LayerState, slots, k, v, positions, scores, ranks, held: int) -> None:
    """Put what survived the block into the cache: new scores of old entries, and new tokens into freed slots."""
    state.scores[:, :, :held] = scores[:, :, :held]
    _copy(_bytes(state.keys), _bytes(k), slots.numpy())
    _copy(_bytes(state.values), _bytes(v), slots.numpy())
    _place(state.positions.numpy(), positions.numpy(), slots.numpy(), held)
    _place(state.scores.numpy(), scores.numpy(), slots.numpy(), held)
    if ranks is not None and state.static is not None:
        _place(state.static.numpy(), ranks.numpy(), slots.numpy(), held)


def _bytes(tensor: torch.Tensor) -> np.ndarray:
    return tensor.view(torch.uint8).numpy()


@intrinsic
def _power_of_two(typingctx, whole):
    """2**whole for a whole float32 in [-126, 127], by writing the exponent's bits."""

    def generate(context, builder, signature, args):
        exponent = builder.add(builder.fptosi(args[0], ir.IntType(32)), ir.Constant(ir.IntType(32), 127))
        return builder.bitcast(builder.shl(exponent, ir.Constant(ir.IntType(32), 23)), ir.FloatType())

    return types.float32(types.float32), generate


def _choice(comparison: str):
    """An intrinsic that picks one of two float32; unlike min and max, LLVM turns a loop of it into SIMD."""

    @intrinsic
    def pick(typingctx, a, b):
        def generate(context, builder, signature, args):
            flags = ("nnan", "nsz")
            first = builder.fcmp_ordered(comparison, *args, flags=flags)
            return builder.select(first, *args, flags=flags)

        return types.float32(types.float32, types.float32), generate

    return pick


_larger, _smaller = _choice(">"), _choice("<")


@numba.njit(inline="always", fastmath=FAST, error_model="numpy")
def _exp(x):
    """e**x for x <= 0 in float32, relative error below 3e-7; exactly 0 below -87."""
    f = max(x, np.float32(-87.0)) * np.float32(1.44269504)
    whole = np.floor(f + np.float32(0.5))
    r = f - whole
    p = np.float32(1.5403530393381608e-4)
    p = p * r + np.float32(1.3333558146428443e-3)
    p = p * r + np.float32(9.618129107628477e-3)
    p = p * r + np.float32(5.550410866482158e-2)
    p = p * r + np.float32(2.402265069591007e-1)
    p = p * r + np.float32(6.931471805599453e-1)
    p = p * r + np.float32(1.0)
    return p * _power_of_two(whole) if x > np.float32(-87.0) else np.float32(0.0)  # type: ignore[call-arg]


@numba.njit(fastmath=FAST, cache=True, error_model="numpy")
def _victim(end, positions, values, offset, newest, sink):
    """The living, unprotected column with the smallest value, then the smallest position."""
    smallest = np.float32(np.inf)
    for i in range(end):
        open_ = (offset[i] == 0) & (positions[i] <= newest) & (positions[i] >= sink)
        smallest = _smaller(values[i] if open_ else np.float32(np.inf), smallest)
    oldest = np.int32(FAR)
    for i in range(end):
        open_ = (offset[i] == 0) & (positions[i] <= newest) & (positions[i] >= sink)
        oldest = min(oldest, positions[i] if open_ & (values[i] <= smallest) else np.int32(FAR))
    at = np.int32(0)
    for i in range(end):
        at = max(at, np.int32(i) if (positions[i] == oldest) & (offset[i] == 0) else np.int32(0))
    if (offset[at] == 0) & (positions[at] <= newest) & (positions[at] >= sink):
        return at
    for i in range(end):  # the values are NaN: any open column keeps the cap
        if (offset[i] == 0) & (positions[i] <= newest) & (positions[i] >= sink):
            return np.int32(i)
    return at


@numba.njit(fastmath=FAST, cache=True, error_model="numpy")
def _means(means, scores, positions, end, seen):
    for i in range(end):
        means[i] = scores[i] / np.float32(seen - positions[i])


@numba.njit(fastmath=FAST, cache=True, error_model="numpy")
def _attend(row, offset, received, end, first, by_max):
    """Softmax over the living columns of row[:end] in place, zeros behind; adds up what they received."""
    top = np.float32(-np.inf)
    for i in range(end):
        top = _larger(row[i] + offset[i], top)
    total = np.float32(0.0)
    for i in range(end):
        e = _exp(row[i] + offset[i] - top)
        row[i] = e
        total += e
    share = np.float32(1.0) / total
    if first:
        for i in range(end):
            row[i] *= share
            received[i] = row[i]
    elif by_max:
        for i in range(end):
            row[i] *= share
            received[i] = _larger(row[i], received[i])
    else:
        for i in range(end):
            row[i] *= share
            received[i] += row[i]
    row[end:] = np.float32(0.0)


@numba.njit(fastmath=FAST, cache=True, error_model="numpy")
def _account(scores, received, end, replace):
    for i in range(end):
        scores[i] = received[i] if replace else scores[i] + received[i]


@numba.njit(parallel=True, cache=True)
def _scan(
    weights,
    positions,
    scores,
    ranks,
    slots,
    valid,
    seen,
    caps,
    recent,
    sink,
    held,
    priority,
    has_ranks,
    by_max,
):
    batch, heads, group, n, width = weights.shape
    for lane in numba.prange(batch * heads):
        b, h = lane // heads, lane % heads
        at = positions[b, h]
        score = scores[b, h]
        values = score
        if priority == STATIC:
            values = ranks[b, h] if has_ranks else np.zeros(width, np.float32)
        elif priority == MEAN:
            values = np.empty(width, np.float32)
        # what is added to a column's logits: 0 while it is alive, -inf otherwise
        offset = np.full(width, -np.inf, np.float32)
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
                for g in range(group):
                    weights[b, h, g, j, :] = 0
                continue
            if alive == caps[b]:
                if priority == MEAN:
                    _means(values, score, at, held + j, np.int32(now))
                out = _victim(held + j, at, values, offset, np.int32(now - recent[b]), np.int32(sink[b]))
                offset[out] = -np.inf
                alive -= 1
                if out < held:
                    freed[gone] = out
                    gone += 1
            offset[held + j] = 0
            alive += 1
            now += 1
            end = held + j + 1
            for g in range(group):
                _attend(weights[b, h, g, j], offset, received, end, g == 0, by_max)
            _account(score, received, end, priority == LAST)
        for j in range(n):
            if offset[held + j] != 0:
                slots[b, h, j] = NOWHERE
            elif gone > 0:
                gone -= 1
                slots[b, h, j] = freed[gone]
            else:
                slots[b, h, j] = first_free
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
