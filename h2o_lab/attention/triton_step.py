"""One token for every sequence as one Triton kernel over the cache as it lies: only the new entry is copied.

A program is one KV head of one sequence. It finds the victim, puts the new token into its slot, and reads keys and
values once, in tiles that all query heads of the group share, with a running softmax. Logits are kept, a few bytes
beside the keys and values of an entry, so that a second pass over them alone adds up what each entry received.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from h2o_lab.attention.padding import token_counts
from h2o_lab.attention.state import LayerState
from h2o_lab.attention.triton_rules import NOBODY, is_open, order_of
from h2o_lab.policies import Priority

MEAN, LAST = tl.constexpr(int(Priority.MEAN)), tl.constexpr(int(Priority.LAST))
FAR = tl.constexpr(2**31 - 1)
SPAN = 256
"""Entries that are looked at together in search of the victim."""
TILE_NUMBERS = 4096
"""Of keys that are read together, and as many of values."""


def fits(q: torch.Tensor, state: LayerState, normaliser: torch.Tensor | None) -> bool:
    """Whether this is such a case: one token, and no record of evictions."""
    return q.shape[2] == 1 and state.evicted_at is None and normaliser is None


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
    batch, heads, slots, size = state.keys.shape
    group = q.shape[1] // heads
    policy = state.policy
    after = state.seen + token_counts(valid)
    width = int(torch.minimum(after, state.caps.k).max())
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype, device=q.device)
    if width == 0:  # nothing but padding
        return out
    together = policy.scope != "head"
    logits = torch.empty(batch, heads, group, width, dtype=torch.float32, device=q.device)
    received = torch.zeros(batch, heads, width, device=q.device) if together else state.scores
    ranks = state.static if policy.priority.fixed else state.ranking
    newcomers = static if state.static is not None else None
    padded = triton.next_power_of_2(max(size, 16))
    _step[(batch * heads,)](
        q.contiguous(),
        k.contiguous(),
        v.contiguous(),
        state.keys,
        state.values,
        state.positions,
        state.scores,
        state.scores if ranks is None else ranks,
        state.scores if newcomers is None else state.static,
        state.scores if newcomers is None else newcomers.contiguous(),
        valid.contiguous(),
        state.seen.to(q.device, non_blocking=True),
        state.caps.table_on(q.device),
        logits,
        received,
        out,
        scale,
        heads,
        slots,
        width,
        SIZE=size,
        VALUE_SIZE=v.shape[-1],
        GROUP=group,
        ROWS=1 if group == 1 else triton.next_power_of_2(max(group, 16)),
        D=padded,
        DV=triton.next_power_of_2(max(v.shape[-1], 16)),
        TILE=max(16, min(64, TILE_NUMBERS // padded)),
        SPAN=SPAN,
        PRIORITY=int(policy.priority),
        FIXED=policy.priority.fixed,
        RANKED=ranks is not None,
        CARRIES=newcomers is not None,
        BY_MAX=policy.group_reduce == "max",
        TOGETHER=together,
        EXACT=q.dtype == torch.float32,
    )
    if together:
        share_scores(state, received, valid[:, 0])
    state.seen = after
    return out


def share_scores(state: LayerState, received: torch.Tensor, real: torch.Tensor) -> None:
    """Give all heads of a layer what they received together.

    Args:
        state: the layer's cache; its scores change.
        received: float32 [B, H, W], of the first W slots.
        real: bool [B], rows whose latest token is no padding.
    """
    scores = state.scores[:, :, : received.shape[2]]
    total = received.sum(dim=1, keepdim=True)
    if state.policy.priority is Priority.LAST:
        scores.copy_(torch.where(real[:, None, None], total, scores))
    else:
        scores.add_(total)


@triton.jit
def _victim(
    positions,
    scores,
    ranks,
    now,
    held,
    caps,
    SPAN: tl.constexpr,
    PRIORITY: tl.constexpr,
    FIXED: tl.constexpr,
    RANKED: tl.constexpr,
):
    """The slot of the unprotected entry with the smallest value, then the smallest position."""
    best = tl.full([SPAN], NOBODY, tl.int64)
    spot = tl.full([SPAN], 0, tl.int32)
    for start in range(0, held, SPAN):
        at = start + tl.arange(0, SPAN)
        inside = at < held
        place = tl.load(positions + at, mask=inside, other=-1)
        if RANKED:
            values = tl.load(ranks + at, mask=inside, other=0.0)
        elif FIXED:
            values = tl.zeros([SPAN], tl.float32)
        else:
            values = tl.load(scores + at, mask=inside, other=0.0)
        if PRIORITY == MEAN:
            values = tl.div_rn(values, tl.maximum(now - place, 1).to(tl.float32))
        order = order_of(values, place, is_open(place, now, caps))
        spot = tl.where(order < best, at, spot)
        best = tl.minimum(order, best)
    return tl.min(tl.where(best == tl.min(best, 0), spot, FAR), 0)


@triton.jit
def _step(
    q,
    k,
    v,
    keys,
    values,
    positions,
    scores,
    ranks,
    carried,
    newcomers,
    valid,
    seen,
    caps,
    logits,
    received,
    out,
    scale,
    heads,
    slots,
    width,
    SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    TILE: tl.constexpr,
    SPAN: tl.constexpr,
    PRIORITY: tl.constexpr,
    FIXED: tl.constexpr,
    RANKED: tl.constexpr,
    CARRIES: tl.constexpr,
    BY_MAX: tl.constexpr,
    TOGETHER: tl.constexpr,
    EXACT: tl.constexpr,
):
    lane = tl.program_id(0).to(tl.int64)
    row = lane // heads
    if tl.load(valid + row) == 0:
        return
    caps += row * 7
    seen_before = tl.load(seen + row)
    now = seen_before.to(tl.int32)
    held = tl.minimum(seen_before, tl.load(caps)).to(tl.int32)
    mine = lane * slots
    slot = held
    if seen_before >= tl.load(caps):
        slot = _victim(
            positions + mine, scores + mine, ranks + mine, now, held, caps, SPAN, PRIORITY, FIXED, RANKED
        )
    end = tl.maximum(held, slot + 1)

    d, dv = tl.arange(0, D), tl.arange(0, DV)
    new_key = tl.load(k + lane * SIZE + d, mask=d < SIZE)
    new_value = tl.load(v + lane * VALUE_SIZE + dv, mask=dv < VALUE_SIZE)
    tl.store(keys + (mine + slot) * SIZE + d, new_key, mask=d < SIZE)
    tl.store(values + (mine + slot) * VALUE_SIZE + dv, new_value, mask=dv < VALUE_SIZE)
    tl.store(positions + mine + slot, now)
    if CARRIES:
        tl.store(carried + mine + slot, tl.load(newcomers + lane))
    if TOGETHER:
        tl.store(scores + mine + slot, 0.0)
    tl.debug_barrier()  # other threads of this program read what was written

    g = tl.arange(0, ROWS)[:, None]
    query = tl.load(q + (lane * GROUP + g) * SIZE + d[None, :], mask=(g < GROUP) & (d < SIZE)[None, :], other=0.0)
    query = query.to(tl.float32)
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.full([ROWS], 0.0, tl.float32)
    mixed = tl.zeros([ROWS, DV], tl.float32)
    for start in range(0, end, TILE):
        at = start + tl.arange(0, TILE)
        inside = at < end
        entry = (mine + at)[:, None]
        key = tl.load(keys + entry * SIZE + d[None, :], mask=inside[:, None] & (d < SIZE)[None, :], other=0.0)
        value = tl.load(
            values + entry * VALUE_SIZE + dv[None, :], mask=inside[:, None] & (dv < VALUE_SIZE)[None, :], other=0.0
        )
        key, value = key.to(tl.float32), value.to(tl.float32)
        if ROWS == 1:
            row_logits = tl.sum(key * query, 1)[None, :]
        elif EXACT:
            row_logits = tl.dot(query, tl.trans(key), input_precision="ieee")
        else:  # half and bfloat16 numbers are exact in tf32
            row_logits = tl.dot(query, tl.trans(key), input_precision="tf32")
        row_logits = tl.where(inside[None, :], row_logits * scale, -float("inf"))
        tl.store(logits + (lane * GROUP + g) * width + at[None, :], row_logits, mask=(g < GROUP) & inside[None, :])
        higher = tl.maximum(top, tl.max(row_logits, 1))
        shrink = tl.exp(top - higher)
        p = tl.exp(row_logits - higher[:, None])
        total = total * shrink + tl.sum(p, 1)
        if ROWS == 1:
            mixed = mixed * shrink[:, None] + tl.sum(tl.trans(p) * value, 0)[None, :]
        elif EXACT:
            mixed = mixed * shrink[:, None] + tl.dot(p, value, input_precision="ieee")
        else:
            mixed = mixed * shrink[:, None] + tl.dot(p, value, input_precision="tf32x3")
        top = higher
    tl.store(
        out + (lane * GROUP + g) * VALUE_SIZE + dv[None, :],
        (mixed / total[:, None]).to(out.dtype.element_ty),
        mask=(g < GROUP) & (dv < VALUE_SIZE)[None, :],
    )

    tl.debug_barrier()
    for start in range(0, end, TILE):
        at = start + tl.arange(0, TILE)
        inside = at < end
        both = (g < GROUP) & inside[None, :]
        row_logits = tl.load(logits + (lane * GROUP + g) * width + at[None, :], mask=both, other=-float("inf"))
        p = tl.where(both, tl.exp(row_logits - top[:, None]) / total[:, None], 0.0)
        gain = tl.max(p, 0) if BY_MAX else tl.sum(p, 0)
        if TOGETHER:
            tl.store(received + lane * width + at, gain, mask=inside)
        else:
            if PRIORITY != LAST:
                score = tl.load(scores + mine + at, mask=inside, other=0.0)
                gain += tl.where(at == slot, 0.0, score)
            tl.store(scores + mine + at, gain, mask=inside)
