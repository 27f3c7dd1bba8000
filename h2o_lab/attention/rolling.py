"""Virtual positions inside a compiled pass (`positions: rolling`).

Places are counted in a frame in which a query stands behind all tokens before it, and a key where it came in: one
matrix product of rotated keys is right for all entries until an eviction. That moves the entries older than the
victim by one step toward the query; their logits are then taken one by one, from keys that are rotated anew, so
that no error builds up. Only distances matter, so the frame is set back to ranks by age every `ROOM` evictions.
"""

from __future__ import annotations

import numba
import numpy as np

from h2o_lab.attention.simd import FAST

ROOM = 512
"""How far places may be above ranks by age."""


@numba.njit(cache=True)
def places_by_age(places, positions):
    """The rank of each entry by its position; 0 for the oldest."""
    order = np.argsort(positions)
    for rank in range(len(order)):
        places[order[rank]] = rank


@numba.njit(cache=True, fastmath=FAST, error_model="numpy")
def rotate(target, key, cos, sin):
    """target = key, rotated by an angle for each pair of dimensions; the others follow as they are."""
    half = len(cos)
    for d in range(half):
        target[d] = key[d] * cos[d] - key[half + d] * sin[d]
        target[half + d] = key[half + d] * cos[d] + key[d] * sin[d]
    for d in range(2 * half, len(key)):
        target[d] = key[d]


@numba.njit(fastmath=FAST, cache=True, error_model="numpy")
def shift(victim, end, positions, offset, places, moved):
    """Move the living columns that are older than the position `victim`."""
    for i in range(end):
        older = (offset[i] == 0) & (positions[i] < victim)
        places[i] += older
        moved[i] |= older


@numba.njit(fastmath=FAST, cache=True, error_model="numpy")
def moved_logits(weights, queries, first, step, end, moved, offset, raw, places, angles, rotated):
    """Replace the logits of columns that have moved since the block's matrix product, for one token of one head.

    Args:
        weights: float32 [R, W]; the token has rows `first`, `first + step` and so on, as in the queries.
        queries: float32 [R, D].
        raw: float32 [W, D], keys without rotation.
        rotated: float32 [D], scratch.
    """
    half = angles.cos.shape[1]
    x, y = rotated[:half], rotated[half : 2 * half]
    for i in range(end):
        if moved[i] and offset[i] == 0:
            # slices: LLVM turns the loops into SIMD only where it knows each row's length
            a, b, c, s = raw[i, :half], raw[i, half : 2 * half], angles.cos[places[i]], angles.sin[places[i]]
            for d in range(half):
                x[d] = a[d] * c[d] - b[d] * s[d]
                y[d] = b[d] * c[d] + a[d] * s[d]
            rotated[2 * half :] = raw[i, 2 * half :]
            for row in range(first, len(queries), step):
                query = queries[row]
                total = np.float32(0.0)
                for d in range(len(rotated)):
                    total += query[d] * rotated[d]
                weights[row, i] = total
