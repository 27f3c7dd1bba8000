"""The executor for CUDA: what `compiled` is for the CPU, with Triton kernels for a token and for a block of tokens.

Rolling positions, numbers other than float32, float16 and bfloat16, heads beyond 256 and caps beyond `WIDEST`
columns are left to the reference executor.
"""

from __future__ import annotations

import torch

from h2o_lab.attention import reference, triton_scan, triton_step
from h2o_lab.attention.padding import on_host
from h2o_lab.attention.state import EMPTY, NEVER, LayerState

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LARGEST_HEAD = 256
WIDEST = 32768
"""Columns that one program walks over."""
BLOCK = 64
"""Tokens between two matrix products."""


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
    """See `h2o_lab.attention.executors.attend` and the reference executor."""
    if not covers(q, state):
        return reference.attend(q, k, v, state, scale=scale, valid=valid, static=static, normaliser=normaliser)
    with torch.cuda.device_of(q):  # Triton starts kernels on the current device
        if triton_step.fits(q, state, normaliser):
            return triton_step.attend(q, k, v, state, scale=scale, valid=valid, static=static)
        return _in_blocks(q, k, v, state, scale=scale, valid=valid, static=static, normaliser=normaliser)


def covers(q: torch.Tensor, state: LayerState) -> bool:
    """Whether the kernels compute this; without a cap nothing is walked over."""
    return (
        state.rotary is None
        and q.dtype == state.keys.dtype == state.values.dtype
        and q.dtype in DTYPES
        and max(q.shape[-1], state.values.shape[-1]) <= LARGEST_HEAD
        and (not state.caps.bounded or int(state.caps.k.max()) + BLOCK <= WIDEST)
    )


def _in_blocks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    state: LayerState,
    *,
    scale: float,
    valid: torch.Tensor,
    static: torch.Tensor | None,
    normaliser: torch.Tensor | None,
) -> torch.Tensor:
    """Matrix products over blocks of tokens, and the policy as a scan between them.

    A block of n tokens meets the entries held before it and the block's own tokens: one product gives all logits
    [n, held + n]. The scan takes the tokens in order and writes probabilities (zero for what is not held) in place
    of the logits; a second product gives the outputs.
    """
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
            valid[:, block].contiguous(),
            static[:, :, block] if static is not None else None,
            normaliser[:, :, block].contiguous() if normaliser is not None else None,
        )
        state.seen = state.seen + tokens[:, block].sum(dim=1)
    return out


def _attend_block(q, k, v, state: LayerState, scale: float, valid, static, normaliser) -> torch.Tensor:
    batch, heads, n, _ = k.shape
    group = q.shape[1] // heads
    held = state.width
    order = valid.long().cumsum(dim=1)
    lanes = heads if state.policy.scope == "head" else 1

    keys = torch.cat([state.keys[:, :, :held], k], dim=2).float()
    values = torch.cat([state.values[:, :, :held], v], dim=2).float()
    query = q.reshape(batch, heads, group, n, -1).float() * scale
    # logits, until the scan turns them into probabilities
    weights = query.reshape(batch, heads, group * n, -1) @ keys.transpose(2, 3)

    columns = _columns(state, valid, order, static, lanes)
    if normaliser is not None:
        normaliser = normaliser.view(batch, heads, group, n)
    triton_scan.run(weights.view(batch, heads, group, n, held + n), columns, state, valid, held, normaliser)
    triton_scan.store(state, k, v, columns, held)
    return (weights @ values).view(batch, heads * group, n, -1).to(q.dtype)


def _columns(state: LayerState, valid, order, static, lanes: int) -> triton_scan.Columns:
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
    return triton_scan.Columns(
        positions=torch.cat([state.positions[:, :lanes, :held], arrival], dim=2),
        scores=torch.cat([state.scores[:, :lanes, :held], nothing], dim=2),
        ranks=ranks,
        died=torch.full((batch, lanes, held + n), NEVER, dtype=torch.int32, device=device),
        slots=torch.empty(batch, lanes, n, dtype=torch.int64, device=device),
    )
