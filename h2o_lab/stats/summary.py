"""Numbers about how attention is shared out among tokens, and about which tokens get most of it."""

from __future__ import annotations

import torch

from h2o_lab.policies.budget import share as floored


def heavy_hitters(received: torch.Tensor, share: float) -> torch.Tensor:
    """bool [..., n]: the floor(share * n) tokens that received most, one at least (paper, section 3.2).

    Args:
        received: float32 [..., n], accumulated attention.
        share: of the tokens.
    """
    count = max(1, floored(share, received.shape[-1]))
    index = received.topk(count, dim=-1).indices
    return torch.zeros_like(received, dtype=torch.bool).scatter_(-1, index, True)


def gini(received: torch.Tensor) -> torch.Tensor:
    """[...]: Gini coefficient over the last dimension; 0 where all get the same, (n - 1) / n where one gets all."""
    count = received.shape[-1]
    ascending = received.sort(dim=-1).values.double()
    rank = torch.arange(1, count + 1, device=received.device, dtype=torch.float64)
    return (2 * (ascending * rank).sum(dim=-1) / (count * ascending.sum(dim=-1)) - (count + 1) / count).float()


def mass_of_top(received: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """[..., S]: the share of all attention that the most attended tokens have together.

    Args:
        received: float32 [..., n].
        shares: [S], of the tokens, in [0, 1]; between two whole numbers of tokens the curve is a straight line.
    """
    count = received.shape[-1]
    descending = received.sort(dim=-1, descending=True).values.double()
    sums = torch.nn.functional.pad(descending.cumsum(dim=-1), (1, 0))
    place = shares.double().to(received.device) * count
    lower = place.floor().long().clamp(max=count - 1)
    part = place - lower
    return ((1 - part) * sums[..., lower] + part * sums[..., lower + 1]).div(sums[..., -1:]).float()


def overlap(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """[...]: of two sets of equal size, bool [..., n], the share that they have in common."""
    return (one & other).sum(dim=-1) / one.sum(dim=-1)


def overlap_over_time(received: torch.Tensor, checkpoints: list[int], share: float) -> torch.Tensor:
    """[C, C, H]: heavy hitters by the attention up to checkpoint i, found again by that up to checkpoint j >= i.

    Both are chosen among the tokens that were there at i, so that the last column compares what a policy can know
    with what it would need to know (paper, Figure 2d), and a row says how long a heavy hitter stays one. NaN below
    the diagonal. Two random sets would have `share` in common.

    Args:
        received: float32 [C, H, n], accumulated attention after each checkpoint.
        checkpoints: numbers of tokens, ascending.
        share: of the tokens, that count as heavy.
    """
    table = received.new_full((len(checkpoints), len(checkpoints), received.shape[1]), torch.nan)
    for i, tokens in enumerate(checkpoints):
        sets = heavy_hitters(received[i:, :, :tokens], share)
        table[i, i:] = overlap(sets[:1].expand_as(sets), sets)
    return table


def overlap_of_heads(sets: torch.Tensor) -> torch.Tensor:
    """[L]: mean overlap of two different heads of a layer; NaN where there is one head.

    Args:
        sets: bool [L, H, n], of equal size.
    """
    heads = sets.shape[1]
    common = sets.float() @ sets.float().transpose(1, 2) / sets[0, 0].sum()
    return (common.sum(dim=(1, 2)) - heads) / (heads * (heads - 1) or torch.nan)


def overlap_of_layers(sets: torch.Tensor) -> torch.Tensor:
    """[L, L]: overlap of the sets of two layers, bool [L, n], of equal size."""
    return sets.float() @ sets.float().T / sets[0].sum()
