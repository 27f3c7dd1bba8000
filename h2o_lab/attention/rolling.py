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
        return [tensor.numpy() for tensor in self]


@numba.njit(fastmath=FAST, cache=True, error_model="numpy")
def shift(victim, end, positions, offset, places, moved, raw, rotated, cos, sin):
    """Move the living columns that are older than the position `victim`, in all heads of the lane."""
    half = cos.shape[1]
    for i in range(end):
        if (offset[i] == 0) & (positions[i] < victim):
            places[i] += 1
            moved[i] = True
            c, s = cos[places[i]], sin[places[i]]
            for h in range(raw.shape[0]):
                key, out = raw[h, i], rotated[h, i]
                for d in range(half):
                    out[d] = key[d] * c[d] - key[d + half] * s[d]
                    out[d + half] = key[d + half] * c[d] + key[d] * s[d]


@numba.njit(fastmath=FAST, cache=True, error_model="numpy")
def moved_logits(row, end, moved, offset, query, rotated):
    """Replace the logits of columns that have moved since the block's matrix product."""
    for i in range(end):
        if moved[i] and offset[i] == 0:
            key = rotated[i]
            total = np.float32(0.0)
            for d in range(len(query)):
                total += query[d] * key[d]
            row[i] = total
