"""What the last queries of a prompt attend to: the numbers that prompt compression ranks by."""

from __future__ import annotations

import torch

from h2o_lab.attention.state import LayerState


def observe(q: torch.Tensor, state: LayerState, scale: float, valid: torch.Tensor, window: int) -> torch.Tensor:
    """Attention of each sequence's last queries over its whole prompt.

    Args:
        q: [B, Hq, T, D], the prompt's queries.
        state: holds the whole prompt, slot and position being the same.
        scale: factor on the dot products.
        valid: bool [B, T], False for padding.
        window: number of queries.

    Returns:
        float32 [B, H, C], probabilities summed over these queries and the query heads of the group.
    """
    batch, heads, _, _ = state.keys.shape
    width = state.width
    order = valid.long().cumsum(dim=1)
    length = order[:, -1:]
    place = length - window + torch.arange(window, device=q.device)  # [B, w], positions of the window's queries
    real = place >= 0
    column = (order[:, None] == place[..., None] + 1).long().argmax(dim=-1)  # the first with this count
    index = column[:, None, :, None].expand(batch, q.shape[1], window, q.shape[-1])
    query = q.gather(2, index).float() * scale
    if state.rotary is not None:
        query = state.rotary.rotate(query, place.clamp(min=0)[:, None], width)
    logits = query.reshape(batch, heads, -1, q.shape[-1]) @ state.rotated_keys(width).transpose(2, 3)
    logits = logits.view(batch, heads, -1, window, width)
    ahead = torch.arange(width, device=q.device) > place.clamp(min=0)[..., None]
    p = logits.masked_fill(ahead[:, None, None], -torch.inf).softmax(dim=-1)
    received = p.masked_fill(~real[:, None, None, :, None], 0).sum(dim=(2, 3))
    return torch.nn.functional.pad(received, (0, state.keys.shape[2] - width))
