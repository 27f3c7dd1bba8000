"""The compiled CPU executor: matrix products over blocks of tokens, and the policy as one compiled scan.

A block of n tokens meets the entries held before it and the block's own tokens: one matrix product gives all
logits [n, held + n]. The scan then walks the tokens in order, deciding which columns are alive for each: it
evicts, inserts, normalises over the living columns and accounts, and writes probabilities (zero for the dead)
in place of the logits. A second product gives the outputs. The mathematics is that of the reference executor,
O(T k D) work and O(k) memory: no T x T map is formed.
"""

import torch

from h2o_lab.attention import scan
from h2o_lab.attention.state import EMPTY, LayerState

BLOCK = 64


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
    """See `h2o_lab.attention.executors.attend`; tensors on the CPU."""
    out = torch.empty(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    for start in range(0, q.shape[2], BLOCK):
        block = slice(start, start + BLOCK)
        out[:, :, block] = _attend_block(
            q[:, :, block],
            k[:, :, block].contiguous(),
            v[:, :, block].contiguous(),
            state,
            scale,
            valid[:, block],
            static[:, :, block] if static is not None else None,
        )
    return out


def _attend_block(q, k, v, state: LayerState, scale: float, valid, static) -> torch.Tensor:
    batch, heads, n, _ = k.shape
    group = q.shape[1] // heads
    held = state.width
    order = valid.long().cumsum(dim=1)
    arrival = torch.where(valid, state.seen[:, None] + order - 1, EMPTY).int()[:, None].expand(batch, heads, n)

    positions = torch.cat([state.positions[:, :, :held], arrival], dim=2)
    scores = torch.cat([state.scores[:, :, :held], torch.zeros(batch, heads, n)], dim=2)
    ranks = torch.cat([state.static[:, :, :held], static], dim=2) if state.static is not None else None
    keys = torch.cat([state.keys[:, :, :held], k], dim=2).float()
    values = torch.cat([state.values[:, :, :held], v], dim=2).float()

    query = q.reshape(batch, heads, group * n, -1).float() * scale
    weights = query @ keys.transpose(2, 3)  # logits, until the scan turns them into probabilities
    slots = torch.empty(batch, heads, n, dtype=torch.int64)
    scan.run(weights.view(batch, heads, group, n, held + n), positions, scores, ranks, slots, state, valid, held)
    scan.store(state, slots, k, v, positions, scores, ranks, held)
    state.seen = state.seen + order[:, -1]
    return (weights @ values).view(batch, heads * group, n, -1).to(q.dtype)
