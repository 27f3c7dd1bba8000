"""The readable executor: one token at a time, plain PyTorch, any device and dtype.

This is the specification that every other executor is tested against.
"""

import torch

from h2o_lab.attention.state import EMPTY, LayerState
from h2o_lab.policies import Priority


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
    """See `h2o_lab.attention.executors.attend`.

    `normaliser` (float32 [B, Hq, T]) is the logarithm of the sum of exponentials that the accounted probabilities
    are relative to, where it is not that of the entries held.
    """
    batch, heads, length, _ = k.shape
    group = q.shape[1] // heads
    out = q.new_zeros(batch, q.shape[1], length, v.shape[-1])
    for j in range(length):
        rows = valid[:, j].nonzero().squeeze(1)
        if len(rows) == 0:
            continue
        slots = _free_slots(state, rows)
        _insert(state, rows, slots, j, k, v, static)
        query = q[:, :, j].float() * scale
        if state.rotary is not None:
            places = (state.held - 1).clamp(min=0).to(query.device)[:, None]
            query = state.rotary.rotate(query, places, state.width)
        query = query[rows].view(len(rows), heads, group, -1)
        logits = torch.einsum("bhgd,bhcd->bhgc", query, state.rotated_keys(state.keys.shape[2])[rows])
        empty = (state.positions[rows] == EMPTY).unsqueeze(2)
        logits = logits.masked_fill(empty, -torch.inf)
        p = logits.softmax(dim=-1)
        if normaliser is None:
            _account(state, rows, p)
        else:
            total = normaliser[rows, :, j].view(len(rows), heads, group, 1)
            _account(state, rows, (logits - total).exp())
        out[rows, :, j] = torch.einsum("bhgc,bhcd->bhgd", p, state.values[rows].float()).flatten(1, 2).to(out.dtype)
    return out


def _free_slots(state: LayerState, rows: torch.Tensor) -> torch.Tensor:
    """int64 [R, H], the slot for the next token of each row: the victim's where the cap is reached."""
    held = state.held[rows.cpu()].to(rows.device)
    full = (held == state.caps.k[rows.cpu()].to(rows.device))[:, None]
    next_free = held[:, None].expand(-1, state.keys.shape[1])
    return torch.where(full, victims(state)[rows], next_free)


def victims(state: LayerState) -> torch.Tensor:
    """int64 [B, H], the slot of the unprotected entry with the smallest priority, then smallest position."""
    candidate = (state.positions != EMPTY) & ~state.protected(state.seen)
    value = state.priorities().masked_fill(~candidate, torch.inf)
    smallest = (value == value.amin(dim=-1, keepdim=True)) & candidate
    return state.positions.masked_fill(~smallest, torch.iinfo(torch.int32).max).argmin(dim=-1)


def _insert(state: LayerState, rows, slots, j: int, k, v, static) -> None:
    at = (rows[:, None], torch.arange(k.shape[1], device=rows.device)[None], slots)
    now = state.seen.to(rows.device, torch.int32)[rows, None].expand_as(slots)
    if state.evicted_at is not None:
        old = state.positions[at]
        row, head = (old != EMPTY).nonzero(as_tuple=True)
        state.evicted_at[rows[row], head, old[row, head].long()] = now[row, head]
    state.keys[at] = k[rows, :, j]
    state.values[at] = v[rows, :, j]
    state.scores[at] = 0
    if state.static is not None:
        state.static[at] = static[rows, :, j]
    state.positions[at] = now
    state.seen[rows.cpu()] += 1


def _account(state: LayerState, rows: torch.Tensor, p: torch.Tensor) -> None:
    received = p.sum(dim=2) if state.policy.group_reduce == "sum" else p.amax(dim=2)
    if state.policy.scope != "head":
        received = received.sum(dim=1, keepdim=True).expand_as(received)
    if state.policy.priority is Priority.LAST:
        state.scores[rows] = received
    else:
        state.scores[rows] += received
