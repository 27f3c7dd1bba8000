"""Sparse attention: everything stays in memory, and a `SparsePolicy` chooses what each query attends to.

Works in blocks of queries with plain tensor operations, O(T^2) as every query meets every key; a companion policy
(what `h2o` of k/2 would hold) runs beside on one of the evicting executors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import torch

from h2o_lab.attention.caps import Caps
from h2o_lab.attention.dense import append
from h2o_lab.attention.state import LayerState
from h2o_lab.errors import UserError
from h2o_lab.policies.sparse import Glance, SparsePolicy


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    state: LayerState,
    *,
    scale: float,
    valid: torch.Tensor,
    block: int,
    beside: Callable[..., torch.Tensor],
) -> torch.Tensor:
    """See `h2o_lab.attention.executors.attend`.

    Args:
        block: queries taken at once.
        beside: the executor of the companion.

    Raises:
        UserError: the rule looks at the whole text, and the text comes in parts.
    """
    policy = cast(SparsePolicy, state.policy)
    order = valid.long().cumsum(dim=1)
    query_at = (state.seen.to(order.device)[:, None] + order - 1).masked_fill(~valid, 0)
    if policy.needs_columns and state.width:
        raise UserError(f"policy {policy.name} looks at the whole text: give it to the model in one call.")
    append(state, k, v, None, valid, order)
    if state.width == 0:  # nothing but padding
        return q.new_zeros(*q.shape[:3], v.shape[-1])
    rows = _Rows(q, state, scale, valid, query_at)
    if policy.needs_columns:
        state.columns = rows.received_by_columns(block)
    if state.companion is None:
        state.companion = _companion(policy, state, k, v)
    out = q.new_empty(*q.shape[:3], v.shape[-1])
    for part, logits in rows.blocks(block):
        heavy = None
        if state.companion is not None:
            heavy = _held_beside(part, logits, state, beside, q, k, v, scale, valid, query_at)
        glance = Glance(
            logits,
            query_at[:, part],
            rows.key_at[: logits.shape[-1]],
            state.caps.budget,
            state.caps.recent,
            heavy,
            state.columns,
        )
        logits.masked_fill_(~policy.visible(glance), -torch.inf)
        if not valid[:, part].all():
            logits.masked_fill_(~valid[:, part][:, None, None, :, None], 0)
        mixed = logits.softmax(dim=-1).flatten(2, 3) @ rows.values[:, :, : logits.shape[-1]]
        out[:, :, part] = mixed.view(*q.shape[:2], -1, v.shape[-1]).to(q.dtype)
    return out


class _Rows:
    """The logits of a call's queries against everything seen, block by block."""

    def __init__(self, q, state: LayerState, scale: float, valid, query_at) -> None:
        width = state.width
        self.keys, self.values = state.keys[:, :, :width].float(), state.values[:, :, :width].float()
        self.q, self.scale, self.valid, self.query_at = q, scale, valid, query_at
        self.key_at = torch.arange(width, device=q.device)

    def blocks(self, block: int) -> Iterator[tuple[slice, torch.Tensor]]:
        """(columns of the call, float32 [B, H, G, n, W] with -inf for what lies ahead of each)."""
        batch, heads = self.keys.shape[:2]
        for start in range(0, self.q.shape[2], block):
            part = slice(start, min(start + block, self.q.shape[2]))
            query = self.q[:, :, part].reshape(batch, heads, -1, self.q.shape[-1]).float() * self.scale
            end = int(self.query_at[:, part].max()) + 1
            logits = query @ self.keys[:, :, :end].transpose(2, 3)
            logits = logits.view(batch, heads, -1, part.stop - start, end)
            ahead = self.key_at[:end] > self.query_at[:, part, None]
            yield part, logits.masked_fill_(ahead[:, None, None], -torch.inf)

    def received_by_columns(self, block: int) -> torch.Tensor:
        """float32 [B, H, W], probabilities summed over all queries and the group; -inf behind a row's end."""
        total = torch.zeros(*self.keys.shape[:3], device=self.q.device)
        for part, logits in self.blocks(block):
            p = logits.softmax(dim=-1).masked_fill(~self.valid[:, part][:, None, None, :, None], 0)
            total[:, :, : p.shape[-1]] += p.sum(dim=(2, 3))
        length = self.valid.sum(dim=1)
        return total.masked_fill((self.key_at >= length[:, None])[:, None], -torch.inf)


def _companion(policy: SparsePolicy, state: LayerState, k: torch.Tensor, v: torch.Tensor) -> LayerState | None:
    """The state of the policy that runs beside, its caps following from the budget."""
    rule = policy.companion()
    if rule is None:
        return None
    entries = [policy.companion_entries(budget) for budget in state.caps.budget.tolist()]
    caps = Caps.from_sizes(entries, entries, [rule.protection(k, k) for k in entries])
    return LayerState.empty(rule, caps, k, v, record=True)


def _held_beside(part, logits, state: LayerState, beside, q, k, v, scale, valid, query_at) -> torch.Tensor:
    """bool [B, H, n, W], what the companion holds when each query of the block attends."""
    companion = state.companion
    assert companion is not None
    companion.reserve(int((companion.seen + valid[:, part].sum(dim=1).cpu()).max()))
    normaliser = None
    if cast(SparsePolicy, state.policy).unmasked_scores:
        normaliser = logits.logsumexp(dim=-1).flatten(1, 2)
    beside(
        q[:, :, part],
        k[:, :, part],
        v[:, :, part],
        companion,
        scale=scale,
        valid=valid[:, part],
        static=None,
        normaliser=normaliser,
    )
    held = companion.visible_at(query_at[:, part])
    return torch.nn.functional.pad(held, (0, logits.shape[-1] - held.shape[-1]))
