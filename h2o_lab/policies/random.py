"""Random eviction: the baseline that tells what the heavy hitters are worth."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from h2o_lab.policies.base import Policy, Priority

MASK = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class Random(Policy):
    """Half of the cache for recent tokens, the rest for tokens drawn by a counter-based hash.

    The hash depends on (seed, layer, head, position) alone, so the same tokens are kept whatever the batch
    and the chunks a text is fed in.
    """

    name: ClassVar[str] = "random"

    recent_fraction: float | None = 0.5
    priority: Priority = Priority.STATIC

    def static_priority(self, positions: torch.Tensor, keys: torch.Tensor, layer: int, seed: int) -> torch.Tensor:
        heads = torch.arange(keys.shape[1], device=positions.device)
        stream = _mix(_mix(_mix(torch.full_like(heads, seed & MASK)) + layer) + heads)
        hashed = _mix(stream[None, :, None] + _mix(positions)[:, None, :])
        return (hashed >> 8).float()  # 24 bits: exact in float32


def _mix(x: torch.Tensor) -> torch.Tensor:
    """A 32-bit finaliser of multiplications and shifts, on int64 tensors of any shape."""
    x = x & MASK
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK
    x = ((x ^ (x >> 15)) * 0x68E31DA4) & MASK
    return x ^ (x >> 16)
