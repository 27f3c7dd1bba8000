"""The executor for CUDA: what `compiled` is for the CPU, with Triton kernels for its two scans.

Rolling positions, numbers other than float32, float16 and bfloat16, heads beyond 256 and caps beyond `WIDEST`
columns are left to the reference executor.
"""

from __future__ import annotations

import torch

from h2o_lab.attention import reference, triton_scan, triton_step
from h2o_lab.attention.compiled import BLOCK, in_blocks
from h2o_lab.attention.state import LayerState

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LARGEST_HEAD = 256
WIDEST = 32768
"""Columns that one program walks over."""


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
        return in_blocks(
            q, k, v, state, scale=scale, valid=valid, static=static, normaliser=normaliser, walk=triton_scan
        )


def covers(q: torch.Tensor, state: LayerState) -> bool:
    """Whether the kernels compute this; without a cap nothing is walked over."""
    return (
        state.rotary is None
        and q.dtype == state.keys.dtype == state.values.dtype
        and q.dtype in DTYPES
        and max(q.shape[-1], state.values.shape[-1]) <= LARGEST_HEAD
        and (not state.caps.bounded or int(state.caps.k.max()) + BLOCK <= WIDEST)
    )
