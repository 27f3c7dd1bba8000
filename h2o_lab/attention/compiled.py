"""The executor for the CPU: one compiled pass over a token of each sequence (`step`), or over many (`passage`)."""

import torch

from h2o_lab.attention import passage, step
from h2o_lab.attention.state import LayerState

SPAN = 64
"""Tokens of a pass where the frequencies of rotation follow the entries held."""


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
    """See `h2o_lab.attention.executors.attend`; tensors on the CPU.

    With a normaliser, that of the reference executor, there are scores and no output.
    """
    if step.fits(q, state, normaliser):
        return step.attend(q, k, v, state, scale=scale, valid=valid, static=static)
    whole = max(q.shape[2], 1)
    length = SPAN if state.rotary is not None and state.rotary.changing else whole
    parts = [slice(start, start + length) for start in range(0, whole, length)]
    outputs = [
        passage.attend(
            q[:, :, part],
            k[:, :, part],
            v[:, :, part],
            state,
            scale=scale,
            valid=valid[:, part],
            static=static[:, :, part] if static is not None else None,
            normaliser=normaliser[:, :, part] if normaliser is not None else None,
        )
        for part in parts
    ]
    return torch.cat(outputs, dim=2) if len(outputs) > 1 else outputs[0]
