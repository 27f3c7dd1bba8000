"""The policy as a scan over a block of tokens, for CUDA: evict, insert, normalise, account.

Columns 0 .. held-1 are the entries held before the block, column held + j is token j of the block. A program is
one lane: one KV head of one sequence, or one sequence where its heads keep the same tokens (L lanes a sequence).
It keeps what is known of all columns in registers and walks over the tokens of the block in order, reading and
writing each row of logits once. Where nobody reaches the cap, no token waits for another, and plain tensor
operations do.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from h2o_lab.attention.state import NEVER, LayerState
from h2o_lab.attention.triton_rules import is_open, order_of, position_of
from h2o_lab.policies import Priority

MEAN, LAST = tl.constexpr(int(Priority.MEAN)), tl.constexpr(int(Priority.LAST))
NARROWEST = 128
COLUMNS_PER_WARP = 256


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
) -> None:
    """Walk one block.

    Args:
        weights: float32 [B, H, G, n, held + n], logits in, probabilities out.
        columns: see there.
        state: the layer's cache, for its caps and policy; not changed.
        valid: bool [B, n].
        held: number of columns that come from the cache.
        normaliser: float32 [B, H, G, n], see the reference executor; the weights are then relative to it.
    """
    batch, heads, group, n, width = weights.shape
    if bool((state.seen + n <= state.caps.k).all()):
        _run_without_evictions(weights, columns, state, valid, held, normaliser)
        return
    lanes = columns.positions.shape[1]
    wide = max(NARROWEST, triton.next_power_of_2(width))
    policy = state.policy
    _walk[(batch * lanes,)](
        weights,
        columns.positions,
        columns.scores,
        columns.scores if columns.ranks is None else columns.ranks,
        columns.died,
        columns.slots,
        valid,
        state.seen.to(weights.device, non_blocking=True),
        state.caps.table_on(weights.device),
        weights if normaliser is None else normaliser,
        torch.empty_like(columns.died),
        held,
        n,
        lanes,
        heads // lanes,
        group,
        WIDTH=wide,
        PRIORITY=int(policy.priority),
        FIXED=policy.priority.fixed,
        RANKED=columns.ranks is not None,
        BY_MAX=policy.group_reduce == "max",
        RELATIVE=normaliser is not None,
        RECORDS=state.evicted_at is not None,
        num_warps=max(4, min(32, wide // COLUMNS_PER_WARP)),
    )


def store(state: LayerState, k: torch.Tensor, v: torch.Tensor, columns: Columns, held: int) -> None:
    """Put what survived the block into the cache: new scores of old entries, and new tokens into freed slots."""
    batch, heads, n, size = k.shape
    lanes = columns.positions.shape[1]
    if state.evicted_at is not None:
        positions, died = (x.expand(-1, heads, -1) for x in (columns.positions, columns.died))
        row, head, column = (died < NEVER).nonzero(as_tuple=True)
        state.evicted_at[row, head, positions[row, head, column].long()] = died[row, head, column]
    state.scores[:, :, :held] = columns.scores[:, :, :held]
    carries = state.static is not None and columns.ranks is not None
    _place[(batch * heads, n)](
        k,
        v,
        columns.positions,
        columns.scores,
        columns.ranks if carries else columns.scores,
        columns.slots,
        state.keys,
        state.values,
        state.positions,
        state.scores,
        state.static if carries else state.scores,
        held,
        n,
        heads,
        lanes,
        state.keys.shape[2],
        SIZE=size,
        VALUE_SIZE=v.shape[-1],
        D=triton.next_power_of_2(max(size, v.shape[-1])),
        CARRIES=carries,
        num_warps=1,
    )


def _run_without_evictions(weights, columns: Columns, state: LayerState, valid, held: int, normaliser) -> None:
    """Causal softmax of a block in which every token finds room."""
    batch, heads, _, n, width = weights.shape
    lanes = columns.positions.shape[1]
    row = torch.arange(n, device=weights.device)
    there = columns.positions >= 0
    alive = there[:, :, None] & (torch.arange(width, device=weights.device) - held <= row[:, None])
    hidden = ~alive[:, :, None].expand(-1, -1, heads // lanes, -1, -1).flatten(1, 2)[:, :, None]
    weights.masked_fill_(hidden, -torch.inf)
    total = weights.logsumexp(dim=-1, keepdim=True) if normaliser is None else normaliser[..., None]
    weights.sub_(total).exp_().masked_fill_(~valid[:, None, None, :, None], 0)
    received = weights.amax(dim=2) if state.policy.group_reduce == "max" else weights.sum(dim=2)
    received = received.unflatten(1, (lanes, heads // lanes)).sum(dim=2)
    if state.policy.priority is Priority.LAST:
        latest = (valid * (row + 1)).argmax(dim=1)
        last = received[torch.arange(batch, device=row.device), :, latest]
        columns.scores.copy_(torch.where(valid.any(dim=1)[:, None, None], last, columns.scores))
    else:
        columns.scores.add_(received.sum(dim=2))
    before = there[:, :, :held].sum(dim=2, keepdim=True)
    order = valid.long().cumsum(dim=1)[:, None] - 1
    columns.slots.copy_(torch.where(valid[:, None], before + order, -1))


@triton.jit
def _walk(
    weights,
    positions,
    scores,
    ranks,
    died,
    slots,
    valid,
    seen,
    caps,
    normaliser,
    freed,
    held,
    n,
    lanes,
    together,
    group,
    WIDTH: tl.constexpr,
    PRIORITY: tl.constexpr,
    FIXED: tl.constexpr,
    RANKED: tl.constexpr,
    BY_MAX: tl.constexpr,
    RELATIVE: tl.constexpr,
    RECORDS: tl.constexpr,
):
    lane = tl.program_id(0).to(tl.int64)
    row = lane // lanes
    caps += row * 7
    cap = tl.load(caps)
    now = tl.load(seen + row).to(tl.int32)
    width = held + n
    mine = lane * width
    column = tl.arange(0, WIDTH)
    inside = column < width
    at = tl.load(positions + mine + column, mask=inside, other=-1)
    score = tl.load(scores + mine + column, mask=inside, other=0.0)
    rank = tl.load(ranks + mine + column, mask=inside, other=0.0) if RANKED else tl.zeros([WIDTH], tl.float32)
    old = (column < held) & (at >= 0)
    alive = old
    before = tl.sum(old.to(tl.int32), 0)
    count = before
    for j in range(0, n):
        real = tl.load(valid + row * n + j) != 0
        source = rank if RANKED or FIXED else score
        if PRIORITY == MEAN:
            source = tl.div_rn(source, tl.maximum(now - at, 1).to(tl.float32))
        order = order_of(source, at, alive & is_open(at, now, caps))
        victim = tl.where(real & (count == cap), position_of(tl.min(order, 0)), -1)
        out = alive & (at == victim)
        if RECORDS:
            tl.store(died + mine + column, tl.zeros([WIDTH], tl.int32) + now, mask=out)
        alive = (alive & (out == 0)) | (column == tl.where(real, held + j, -1))
        count = tl.sum(alive.to(tl.int32), 0)
        now += real.to(tl.int32)
        gain = tl.zeros([WIDTH], tl.float32)
        for head in range(0, together):
            part = tl.zeros([WIDTH], tl.float32)
            for g in range(0, group):
                query = ((lane * together + head) * group + g) * n + j
                line = weights + query * width + column
                p = tl.load(line, mask=alive, other=-float("inf"))
                if RELATIVE:
                    p = tl.exp(p - tl.load(normaliser + query))
                else:
                    p = tl.exp(p - tl.max(p, 0))
                    p = p / tl.sum(p, 0)
                p = tl.where(alive, tl.where(real, p, 0.0), 0.0)
                tl.store(line, p, mask=inside)
                part = tl.maximum(part, p) if BY_MAX else part + p
            gain += part
        if PRIORITY == LAST:
            score = tl.where(real, gain, score)
        else:
            score += gain
    tl.store(scores + mine + column, score, mask=inside)
    # survivors take the slots of what went, in order, then those behind what was held
    gone = old & (alive == 0)
    tl.store(freed + mine + tl.cumsum(gone.to(tl.int32), 0) - 1, column, mask=gone)
    tl.debug_barrier()
    new = (column >= held) & alive
    index = tl.cumsum(new.to(tl.int32), 0) - 1
    many = tl.sum(gone.to(tl.int32), 0)
    reused = tl.load(freed + mine + index, mask=new & (index < many), other=0)
    slot = tl.where(index < many, reused, before + index - many)
    tl.store(slots + lane * n + column - held, tl.where(new, slot, -1).to(tl.int64), mask=inside & (column >= held))


@triton.jit
def _place(
    k,
    v,
    positions,
    scores,
    ranks,
    slots,
    to_keys,
    to_values,
    to_positions,
    to_scores,
    to_ranks,
    held,
    n,
    heads,
    lanes,
    capacity,
    SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    D: tl.constexpr,
    CARRIES: tl.constexpr,
):
    lane, j = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, head = lane // heads, lane % heads
    own = row * lanes + tl.minimum(head, lanes - 1)
    slot = tl.load(slots + own * n + j)
    if slot < 0:
        return
    source, column, target = lane * n + j, own * (held + n) + held + j, lane * capacity + slot
    d = tl.arange(0, D)
    key = tl.load(k + source * SIZE + d, mask=d < SIZE)
    tl.store(to_keys + target * SIZE + d, key, mask=d < SIZE)
    value = tl.load(v + source * VALUE_SIZE + d, mask=d < VALUE_SIZE)
    tl.store(to_values + target * VALUE_SIZE + d, value, mask=d < VALUE_SIZE)
    tl.store(to_positions + target, tl.load(positions + column))
    tl.store(to_scores + target, tl.load(scores + column))
    if CARRIES:
        tl.store(to_ranks + target, tl.load(ranks + column))
