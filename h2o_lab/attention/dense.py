"""The full cache without scores: PyTorch's fused attention over everything seen so far."""

import torch
from torch.nn.functional import scaled_dot_product_attention

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
) -> torch.Tensor:
    """See `h2o_lab.attention.executors.attend`; the state must have no cap, and gets no scores."""
    first = state.width == 0
    order = valid.long().cumsum(dim=1)
    right_padded = bool((valid[:, :-1] >= valid[:, 1:]).all())
    append(state, k, v, static, valid, order)
    grouped = q.shape[1] != k.shape[1]
    if first and right_padded and state.rotary is None:
        # padding lies behind every real query, so causality hides it
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
    width = state.width
    positions = state.positions[:, :, :width]
    query_place = state.seen.to(order.device)[:, None] - order[:, -1:] + order - 1
    query_position = query_place[:, None, :, None]
    visible = (positions[:, :1, None, :] <= query_position) & (positions[:, :1, None, :] >= 0)
    visible = visible | ~valid[:, None, :, None]  # a padding row sees anything, so that it is not NaN
    keys = state.keys[:, :, :width]
    if state.rotary is not None:  # nothing is evicted, so an entry's rank is its position
        q = state.rotary.rotate(q, query_place.clamp(min=0)[:, None], width).to(q.dtype)
        keys = state.rotated_keys(width).to(q.dtype)
    return scaled_dot_product_attention(
        q,
        keys,
        state.values[:, :, :width],
        attn_mask=visible,
        scale=scale,
        enable_gqa=grouped,
    )


def append(state: LayerState, k, v, static, valid: torch.Tensor, order: torch.Tensor) -> None:
    """Put the valid tokens of a call behind those held; slot and position are the same."""
    seen = state.seen.to(order.device)
    rows, columns = valid.nonzero(as_tuple=True)
    slots = seen[rows] + order[rows, columns] - 1
    state.keys[rows, :, slots] = k[rows, :, columns]
    state.values[rows, :, slots] = v[rows, :, columns]
    if state.static is not None:
        state.static[rows, :, slots] = static[rows, :, columns]
    state.positions[rows, :, slots] = slots[:, None].expand(-1, k.shape[1]).int()
    state.seen = state.seen + order[:, -1].cpu()
