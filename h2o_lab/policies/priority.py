"""How the entries that nothing protects are ranked."""

from enum import IntEnum

import torch

_MASK = 0xFFFFFFFF


class Priority(IntEnum):
    """The value that ranks an unprotected entry; the smallest goes first, ties by the smallest position."""

    ACCUMULATED = 0
    """Attention received so far, summed over queries (the paper's heavy-hitter score, Algorithm 1)."""
    MEAN = 1
    """Attention received so far, per query that has seen the entry (Appendix B.2)."""
    LAST = 2
    """Attention received from the latest query alone."""
    STATIC = 3
    """A number that the policy computes when the token enters (`Policy.static_priority`)."""
    POSITION = 4
    """The oldest goes first."""
    RANDOM = 5
    """A counter-based hash of (seed, layer, head, position)."""
    GIVEN = 6
    """A number per token supplied from outside: the column sums of full attention (an oracle, two passes)."""

    @property
    def fixed(self) -> bool:
        """Whether the number is known when the token enters, and never changes."""
        return self >= Priority.STATIC


def random_numbers(positions: torch.Tensor, heads: int, layer: int, seed: int) -> torch.Tensor:
    """Reproducible numbers for tokens, whatever the batch and the chunks a text is fed in.

    Args:
        positions: int64 [B, T].
        heads: number of KV heads H.
        layer, seed: the rest of the counter.

    Returns:
        float32 [B, H, T], whole numbers below 2**24.
    """
    head = torch.arange(heads, device=positions.device)
    stream = _mix(_mix(_mix(torch.full_like(head, seed & _MASK)) + layer) + head)
    hashed = _mix(stream[None, :, None] + _mix(positions)[:, None, :])
    return (hashed >> 8).float()  # 24 bits: exact in float32


def _mix(x: torch.Tensor) -> torch.Tensor:
    """A 32-bit finaliser of multiplications and shifts, on int64 tensors of any shape."""
    x = x & _MASK
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK
    x = ((x ^ (x >> 15)) * 0x68E31DA4) & _MASK
    return x ^ (x >> 16)
