"""The compiled CPU executor: matrix products over blocks of tokens, and the policy as a compiled walk between them.

A block of n tokens meets the entries held before it and the block's own tokens: one matrix product gives all
logits [n, held + n]. The walk then takes the tokens in order, deciding which columns are alive for each: it
evicts, inserts, normalises over the living columns and accounts, and writes probabilities (zero for the dead)
in place of the logits. A second product gives the outputs. The mathematics is that of the reference executor,
O(T k D) work and O(k) memory: no T x T map is formed.

`passage` does all of that in one compiled pass where each head is on its own, and `step` does it for one token.
What is left (scopes beyond a head, rolling positions, a given normaliser) goes through torch's products and `scan`.
"""

from typing import Protocol

import torch

from h2o_lab.attention import passage, scan, step
from h2o_lab.attention.padding import on_host
from h2o_lab.attention.rolling import Rolling
from h2o_lab.attention.state import EMPTY, NEVER, LayerState

BLOCK = 64


class Walk(Protocol):
    """A scan over blocks of tokens, such as `h2o_lab.attention.scan`, which says what its functions do."""

    def run(self, weights, columns: scan.Columns, state: LayerState, valid, held: int, normaliser, rolling): ...

    def store(self, state: LayerState, k, v, columns: scan.Columns, held: int): ...


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    state: LayerState,
    *,
    scale: float,
    valid: torch.Tensor,
    static: torch.Tensor | None,
    normaliser: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `h2o_lab.attention.executors.attend` and the reference executor; tensors on the CPU."""
    if step.fits(q, state, normaliser):
        return step.attend(q, k, v, state, scale=scale, valid=valid, static=static)
    if passage.fits(state, normaliser):
        return passage.attend(q, k, v, state, scale=scale, valid=valid, static=static)
    return in_blocks(q, k, v, state, scale=scale, valid=valid, static=static, normaliser=normaliser, walk=scan)


def in_blocks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    state: LayerState,
    *,
    scale: float,
    valid: torch.Tensor,
    static: torch.Tensor | None,
    normaliser: torch.Tensor | None,
    walk: Walk,
) -> torch.Tensor:
    """The same, with any scan, on its device."""
    out = torch.empty(*q.shape[:3], v.shape[-1], dtype=q.dtype, device=q.device)
    tokens = on_host(valid)
    for start in range(0, q.shape[2], BLOCK):
        block = slice(start, start + BLOCK)
        out[:, :, block] = _attend_block(
            q[:, :, block],
            k[:, :, block].contiguous(),
            v[:, :, block].contiguous(),
            state,
            scale,
            valid[:, block].contiguous(),  # all arrays are: another layout would be another kernel
            static[:, :, block] if static is not None else None,
            normaliser[:, :, block].contiguous() if normaliser is not None else None,
            walk,
        )
        state.seen = state.seen + tokens[:, block].sum(dim=1)
    return out


def _attend_block(q, k, v, state: LayerState, scale: float, valid, static, normaliser, walk: Walk) -> torch.Tensor:
    batch, heads, n, _ = k.shape
    group = q.shape[1] // heads
    held = state.width
    order = valid.long().cumsum(dim=1)
    lanes = heads if state.policy.scope == "head" else 1

    keys = torch.cat([state.keys[:, :, :held], k], dim=2).float()
    values = torch.cat([state.values[:, :, :held], v], dim=2).float()
    query = q.reshape(batch, heads, group, n, -1).float() * scale
    rolling = None
    if state.rotary is not None:
        rolling = Rolling.of(state, keys, query, held, order, lanes)
        keys, query = rolling.rotated, rolling.queries
    # logits, until the scan turns them into probabilities
    weights = query.reshape(batch, heads, group * n, -1) @ keys.transpose(2, 3)

    columns = _columns(state, valid, order, static, lanes)
    if normaliser is not None:
        normaliser = normaliser.view(batch, heads, group, n)
    walk.run(weights.view(batch, heads, group, n, held + n), columns, state, valid, held, normaliser, rolling)
    walk.store(state, k, v, columns, held)
    return (weights @ values).view(batch, heads * group, n, -1).to(q.dtype)


def _columns(state: LayerState, valid, order, static, lanes: int) -> scan.Columns:
    """What is known of the entries held and of the block's tokens, for each lane."""
    batch, n = valid.shape
    held, device = state.width, valid.device
    seen = state.seen.to(device, non_blocking=True)
    arrival = torch.where(valid, seen[:, None] + order - 1, EMPTY).int()[:, None].expand(batch, lanes, n)
    ranks, nothing = None, torch.zeros(batch, lanes, n, device=device)
    if state.static is not None:
        ranks = torch.cat([state.static[:, :lanes, :held], static[:, :lanes]], dim=2)
    elif state.ranking is not None:
        ranks = torch.cat([state.ranking[:, :lanes, :held], nothing], dim=2)
    return scan.Columns(
        positions=torch.cat([state.positions[:, :lanes, :held], arrival], dim=2),
        scores=torch.cat([state.scores[:, :lanes, :held], nothing], dim=2),
        ranks=ranks,
        died=torch.full((batch, lanes, held + n), NEVER, dtype=torch.int32, device=device),
        slots=torch.empty(batch, lanes, n, dtype=torch.int64, device=device),
    )
