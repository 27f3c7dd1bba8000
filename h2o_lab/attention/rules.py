"""The rules of a policy as compiled functions over columns: who goes, how logits become shares, how scores grow.

A column holds an entry, or a new token that may become one. What is dead has an offset of -inf.
"""

from __future__ import annotations

import numba
import numpy as np

from h2o_lab.attention.simd import FAST, exp, larger, smaller
from h2o_lab.policies import Priority

MEAN, LAST = int(Priority.MEAN), int(Priority.LAST)
FAR = 2**31 - 1


@numba.njit(fastmath=FAST, cache=True, error_model="numpy")
def _open(i, offset, positions, guard, newest, sink, floor):
    """Whether column i is alive and unprotected; guard is its position where a pattern has it, -1 elsewhere."""
    return (offset[i] == 0) & (positions[i] <= newest) & (positions[i] >= sink) & (guard[i] < floor)


@numba.njit(fastmath=FAST, cache=True, error_model="numpy")
def victim(end, positions, values, offset, guard, newest, sink, floor):
    """The living, unprotected column with the smallest value, then the smallest position."""
    smallest = np.float32(np.inf)
    for i in range(end):
        open_ = _open(i, offset, positions, guard, newest, sink, floor)
        smallest = smaller(values[i] if open_ else np.float32(np.inf), smallest)
    oldest = np.int32(FAR)
    for i in range(end):
        open_ = _open(i, offset, positions, guard, newest, sink, floor)
        oldest = min(oldest, positions[i] if open_ & (values[i] <= smallest) else np.int32(FAR))
    at = np.int32(0)
    for i in range(end):
        at = max(at, np.int32(i) if (positions[i] == oldest) & (offset[i] == 0) else np.int32(0))
    if _open(at, offset, positions, guard, newest, sink, floor):
        return at
    for i in range(end):  # the values are NaN: any open column keeps the cap
        if _open(i, offset, positions, guard, newest, sink, floor):
            return np.int32(i)
    return at


@numba.njit(fastmath=FAST, cache=True, error_model="numpy")
def to_means(means, scores, positions, end, seen):
    for i in range(end):
        means[i] = scores[i] / np.float32(seen - positions[i])


@numba.njit(cache=True)
def to_guards(guard, positions, period, first, width):
    for i in range(len(guard)):
        place = positions[i] % period
        inside = (positions[i] >= 0) & (place >= first) & (place < first + width)
        guard[i] = positions[i] if inside else -1


@numba.njit(cache=True)
def pattern_floor(newest, share, period, first, width):
    """See `h2o_lab.policies.protection.oldest_protected`, for one number; width is at least 1."""
    members = 0
    if newest >= 0:
        members = (newest // period) * width + min(max(newest % period - first + 1, 0), width)
    index = max(members - share, 0)
    return (index // width) * period + first + index % width


@numba.njit(fastmath=FAST, cache=True, error_model="numpy")
def normalise(row, offset, received, end, first, by_max, relative, total_log):
    """Softmax over the living columns of row[:end] in place, zeros behind; adds up what they received.

    With `relative`, probabilities are relative to exp(total_log) in place of the sum over the living.
    """
    top = total_log
    if not relative:
        top = np.float32(-np.inf)
        for i in range(end):
            top = larger(row[i] + offset[i], top)
    total = np.float32(0.0)
    for i in range(end):
        e = exp(row[i] + offset[i] - top)
        row[i] = e
        total += e
    share = np.float32(1.0) if relative else np.float32(1.0) / total
    if first:
        for i in range(end):
            row[i] *= share
            received[i] = row[i]
    elif by_max:
        for i in range(end):
            row[i] *= share
            received[i] = larger(row[i], received[i])
    else:
        for i in range(end):
            row[i] *= share
            received[i] += row[i]
    row[end:] = np.float32(0.0)


@numba.njit(fastmath=FAST, cache=True, error_model="numpy")
def account(scores, received, end, replace):
    for i in range(end):
        scores[i] = received[i] if replace else scores[i] + received[i]
