"""Sizes of the protected sets of one sequence under one cap."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch


class Pattern(NamedTuple):
    """Positions s with first <= s mod period < first + width; the newest `share` of them are protected.

    Counted are members that have left the recent window (those inside it are protected anyway).
    """

    share: int = 0
    period: int = 1
    first: int = 0
    width: int = 0

    @classmethod
    def strided(cls, share: int, n: int, stride: int | None) -> Pattern:
        """s mod stride = 0; by default the smallest stride at which n tokens fit the share."""
        return cls(share, stride or _period(n, share), 0, 1)

    @classmethod
    def fixed(cls, share: int, n: int, block: int | None, tail: int) -> Pattern:
        """s mod block >= block - tail; by default the smallest block at which n tokens fit the share."""
        block = max(block or _period(n * tail, share), tail)
        return cls(share, block, block - tail, tail)


def _period(n: int, share: int) -> int:
    return max(1, math.ceil(n / share)) if share else max(1, n)


class Protection(NamedTuple):
    """Sizes of the protected sets for one sequence, in entries."""

    recent: int
    sink: int
    cut: bool
    """Whether the cap was too small for what the policy asks."""
    pattern: Pattern = Pattern()


def is_member(positions: torch.Tensor, period, first, width) -> torch.Tensor:
    """bool, whether positions (int, any shape) belong to a pattern; the sizes broadcast against them."""
    place = positions % period
    return (positions >= 0) & (place >= first) & (place < first + width)


def oldest_protected(newest: torch.Tensor, share, period, first, width) -> torch.Tensor:
    """The position of the `share`-th newest member that is at most `newest`, or of the first member.

    A member at or behind it is protected. All arguments are int64 tensors of one shape.
    """
    members = (newest // period) * width + (newest % period - first + 1).clamp(min=0).minimum(width)
    index = members.masked_fill(newest < 0, 0) - share
    index, safe = index.clamp(min=0), width.clamp(min=1)
    return (index // safe) * period + first + index % safe
