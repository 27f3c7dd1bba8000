"""Ranking across layers: what scopes `model` and `cascade` sum up before each token.

The choice of layer 0 at step t waits for the last layer's attention at step t - 1, so these scopes are executed one
token at a time once the cap is reached.
"""

from __future__ import annotations

import torch

from h2o_lab.attention.reference import victims
from h2o_lab.attention.state import EMPTY, LayerState

NOBODY = -2


def rank_layers(states: list[LayerState]) -> None:
    """Set `ranking` of every layer from everything seen so far; the layers' scores are sums over their heads."""
    if states[0].policy.scope == "model":
        home = states[0].scores.device
        total = torch.stack([state.scores.to(home) for state in states]).sum(dim=0)
        for state in states:
            state.ranking = total.to(state.scores.device)
        return
    cascade = _Cascade(states[0])
    for state in states:
        state.ranking = cascade.ranking(state)
        full = (state.held == state.caps.k).to(cascade.device)
        slot = victims(state)[:, :1].to(cascade.device)
        victim = state.positions[:, 0].to(cascade.device).gather(1, slot).squeeze(1)
        cascade.forbid(victim.masked_fill(~full, NOBODY)[:, None])


def shrink_layers(states: list[LayerState], caps: list) -> list[LayerState]:
    """`prefill: full` for these scopes: every layer's prompt shrinks by the ranking across layers."""
    if states[0].policy.scope == "model":
        rank_layers(states)
        return [state.shrunk(cap) for state, cap in zip(states, caps, strict=True)]
    cascade, shrunk = _Cascade(states[0]), []
    for state, cap in zip(states, caps, strict=True):
        state.ranking = cascade.ranking(state)
        small = state.shrunk(cap)
        gone = torch.where(_present(state.positions, small.positions), NOBODY, state.positions[:, 0])
        cascade.forbid(gone.to(cascade.device))
        shrunk.append(small)
    return shrunk


def _present(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """bool [B, C], which positions of head 0 are among those of another state."""
    return (before[:, 0, :, None] == after[:, 0, None, :]).any(dim=-1)


class _Cascade:
    """Sums over this and earlier layers by position; what an earlier layer gave up goes first."""

    def __init__(self, first: LayerState) -> None:
        self.device = first.scores.device
        self.end = int(first.seen.max())
        self.sums = torch.zeros(len(first.seen), self.end + 1, device=self.device)
        self.gone = torch.zeros_like(self.sums, dtype=torch.bool)

    def ranking(self, state: LayerState) -> torch.Tensor:
        """float32 [B, H, C] for the next layer."""
        positions = state.positions[:, 0].to(self.device).long()
        spots = positions.masked_fill(positions == EMPTY, self.end)
        self.sums.scatter_add_(1, spots, state.scores[:, 0].to(self.device))
        values = self.sums.gather(1, spots).masked_fill(self.gone.gather(1, spots), -torch.inf)
        return values[:, None].expand_as(state.scores).contiguous().to(state.scores.device)

    def forbid(self, positions: torch.Tensor) -> None:
        """Tokens (int [B, N], NOBODY for none) that no later layer may keep."""
        spots = positions.long().masked_fill(positions < 0, self.end)
        self.gone.scatter_(1, spots, True)
