"""The executor for the CPU: one compiled pass over a token of each sequence (`step`), or over many (`passage`)."""

import torch

from h2o_lab.attention import passage, step
from h2o_lab.attention.state import LayerState


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
        for part in _parts(state, valid)
    ]
    return torch.cat(outputs, dim=2) if len(outputs) > 1 else outputs[0]


def _parts(state: LayerState, valid: torch.Tensor) -> list[slice]:
    """All tokens, or one at a time as long as the cache grows and the frequencies of rotation follow it."""
    length = valid.shape[1]
    if state.rotary is None:
        return [slice(length)]
    held = torch.minimum(state.seen[:, None] + valid.cumsum(dim=1), state.caps.k[:, None]).amax(dim=0)
    if length == 0 or state.rotary.steady(state.width, int(held[-1])):
        return [slice(length)]
    growing = int((held < held[-1]).sum()) + 1
    return [slice(at, at + 1) for at in range(growing)] + [slice(growing, length)] * (growing < length)
