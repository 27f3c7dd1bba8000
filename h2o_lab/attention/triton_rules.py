"""What the Triton kernels share: who may be evicted, and in which order."""

from __future__ import annotations

import triton
import triton.language as tl

NOBODY = tl.constexpr(2**63 - 1)
"""The order of entries that may not be evicted: behind all others."""


@triton.jit
def order_of(values, positions, open_):
    """int64 that sorts open entries by value, then by position; the position is its lower half.

    A float's bits, read as an integer, sort as the float does once those of negative numbers are turned round.
    NaN sorts behind infinity, so that an open entry is always found.
    """
    values = tl.where(values == values, values, float("inf"))  # noqa: PLR0124 (false for NaN)
    values = tl.where(values == 0, 0.0, values)
    bits = values.to(tl.int32, bitcast=True)
    rank = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(open_, (rank.to(tl.int64) << 32) | positions.to(tl.int64), NOBODY)


@triton.jit
def position_of(order):
    """The position that `order_of` was given; -1 of NOBODY."""
    return (order & 0xFFFFFFFF).to(tl.int32)


@triton.jit
def is_open(positions, now, caps):
    """Whether entries are there and unprotected while `now` is the current position.

    Args:
        positions: int32, negative where there is none.
        now: int32.
        caps: pointer to the row of `Caps.table`.
    """
    newest = now - tl.load(caps + 1).to(tl.int32)
    sink = tl.load(caps + 2).to(tl.int32)
    share, period = tl.load(caps + 3).to(tl.int32), tl.load(caps + 4).to(tl.int32)
    first, width = tl.load(caps + 5).to(tl.int32), tl.load(caps + 6).to(tl.int32)
    place = positions % period
    outside = (place < first) | (place >= first + width)
    # the oldest member that its pattern's share protects: h2o_lab.policies.protection.oldest_protected
    partial = tl.minimum(tl.maximum(newest % period - first + 1, 0), width)
    members = tl.where(newest < 0, 0, newest // period * width + partial)
    index = tl.maximum(members - share, 0)
    safe = tl.maximum(width, 1)
    floor = index // safe * period + first + index % safe
    return (positions >= tl.maximum(sink, 0)) & (positions <= newest) & (outside | (positions < floor))
