"""Virtual positions inside a compiled block (`positions: rolling`).

Within a block a query stands at (entries held at its start + tokens since), and every key at its rank at the start:
one matrix product of rotated keys is right for all entries until an eviction. An eviction moves the entries older
than the victim by one step toward the query; those are rotated again from their unrotated keys, so that no error
builds up, and their logits are taken one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
import torch

from h2o_lab.attention.simd import FAST
from h2o_lab.attention.state import LayerState


class Rolling(NamedTuple):
    """What a block needs to move keys.

    Attributes:
        raw, rotated: float32 [B, H, held + n, D], keys without rotation, and at their virtual position.
        queries: float32 [B, H, G, n, D], scaled, at theirs.
        places: int64 [B, L, held + n], virtual positions of the columns.
        cos, sin: float32 [N, R / 2], of positions 0 .. N-1.
    """

    raw: torch.Tensor
    rotated: torch.Tensor
    queries: torch.Tensor
    places: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor

    @classmethod
    def of(cls, state: LayerState, keys, queries, held: int, order: torch.Tensor, lanes: int) -> Rolling:
        """Rotate a block.

        Args:
            state: the layer's cache before the block.
            keys: float32 [B, H, held + n, D], without rotation.
            queries: float32 [B, H, G, n, D], scaled, without rotation.
            held: number of columns that come from the cache.
            order: int64 [B, n], how many tokens of the block came up to each column.
            lanes: 1 where the heads keep the same tokens, else H.
        """
        assert state.rotary is not None
        batch, heads = keys.shape[:2]
        arrival = (state.held[:, None] + order - 1).clamp(min=0)
        places = torch.cat([state.ranks(held), arrival[:, None].expand(batch, heads, -1)], dim=2)
        span = int(torch.minimum(state.seen + order[:, -1], state.caps.k).max())
        rotated = state.rotary.rotate(keys, places, span)
        queries = state.rotary.rotate(queries, arrival[:, None, None], span).contiguous()
        cos, sin = state.rotary.tables(int(places.max()) + 1, span, keys.device)
        return cls(keys.contiguous(), rotated, queries, places[:, :lanes].contiguous(), cos, sin)

    @classmethod
    def nothing(cls) -> Rolling:
        """Stand-ins of the right types for a block without virtual positions."""
        keys, table = torch.zeros(1, 1, 1, 1), torch.zeros(1, 1)
        return cls(keys, keys, torch.zeros(1, 1, 1, 1, 1), torch.zeros(1, 1, 1, dtype=torch.int64), table, table)

    def arrays(self) -> list[np.ndarray]:
        """What the scan takes: all but the rotated keys, which the block's matrix product has used."""
        return [x.numpy() for x in (self.raw, self.queries, self.places, self.cos, self.sin)]


@numba.njit(fastmath=FAST, cache=True, error_model="numpy")
def shift(victim, end, positions, offset, places, moved):
    """Move the living columns that are older than the position `victim`, in all heads of the lane."""
    for i in range(end):
        older = (offset[i] == 0) & (positions[i] < victim)
        places[i] += older
        moved[i] |= older


@numba.njit(fastmath=FAST, cache=True, error_model="numpy")
def moved_logits(weights, j, end, moved, offset, queries, raw, places, cos, sin, rotated):
    """Replace the logits of columns that have moved since the block's matrix product, for token j of one head.

    Args:
        weights: float32 [G, n, held + n].
        queries: float32 [G, n, D].
        raw: float32 [held + n, D].
        rotated: float32 [D], scratch.
    """
    half = cos.shape[1]
    x, y = rotated[:half], rotated[half : 2 * half]
    for i in range(end):
        if moved[i] and offset[i] == 0:
            # slices: LLVM turns the loops into SIMD only where it knows each row's length
            a, b, c, s = raw[i, :half], raw[i, half : 2 * half], cos[places[i]], sin[places[i]]
            for d in range(half):
                x[d] = a[d] * c[d] - b[d] * s[d]
                y[d] = b[d] * c[d] + a[d] * s[d]
            rotated[2 * half :] = raw[i, 2 * half :]
            for g in range(len(queries)):
                query = queries[g, j]
                total = np.float32(0.0)
                for d in range(len(rotated)):
                    total += query[d] * rotated[d]
                weights[g, j, i] = total
