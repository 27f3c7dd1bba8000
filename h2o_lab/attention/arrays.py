"""What the compiled CPU kernels are given: tokens, entries and the rule, as arrays and numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from h2o_lab.attention.state import LayerState

NOTHING = np.zeros((1, 1, 1), np.float32)
NO_RECORD = np.zeros((1, 1, 1), np.int32)


class Tokens(NamedTuple):
    """What is given: q [B, H * G, T, D], k and v [B, H, T, D], static [B, H, T], normaliser [B, H * G, T] float32,
    valid [B, T] bool."""

    q: NDArray[np.float32]
    k: NDArray[np.float32]
    v: NDArray[np.float32]
    static: NDArray[np.float32]
    normaliser: NDArray[np.float32]
    valid: NDArray[np.bool_]

    @classmethod
    def of(
        cls, q, k, v, valid: torch.Tensor, static: torch.Tensor | None, normaliser: torch.Tensor | None
    ) -> Tokens:
        """See `h2o_lab.attention.executors.attend` and the reference executor; contiguous, in float32."""
        return cls(
            q.float().contiguous().numpy(),
            k.float().contiguous().numpy(),
            v.float().contiguous().numpy(),
            static.contiguous().numpy() if static is not None else NOTHING,
            normaliser.contiguous().numpy() if normaliser is not None else NOTHING,
            valid.contiguous().numpy(),
        )


class Entries(NamedTuple):
    """The cache: arrays of `LayerState` of the same names.

    `ranks` are its static numbers, or a copy of its ranking, which layers may share. Keys and values are copies
    where they are not float32.
    """

    keys: NDArray[np.float32]
    values: NDArray[np.float32]
    positions: NDArray[np.int32]
    scores: NDArray[np.float32]
    ranks: NDArray[np.float32]
    evicted_at: NDArray[np.int32]
    seen: NDArray[np.int64]
    caps: NDArray[np.int64]

    @classmethod
    def of(cls, state: LayerState) -> Entries:
        ranks = NOTHING
        if state.static is not None:
            ranks = state.static.numpy()
        elif state.ranking is not None:
            ranks = state.ranking.clone().numpy()
        return cls(
            state.keys.float().numpy(),
            state.values.float().numpy(),
            state.positions.numpy(),
            state.scores.numpy(),
            ranks,
            state.evicted_at.numpy() if state.evicted_at is not None else NO_RECORD,
            state.seen.numpy(),
            state.caps.table,
        )


class Rule(NamedTuple):
    """The policy.

    Attributes:
        priority: see `h2o_lab.policies.Priority`.
        fixed: whether that never changes.
        ranked: whether it lies in `Entries.ranks`.
        static: whether it is given for new tokens.
        records: whether evictions are recorded.
        by_max: whether a group's queries count by their largest.
        relative: whether a normaliser is given.
        rolls: whether positions roll.
    """

    priority: int
    fixed: bool
    ranked: bool
    static: bool
    records: bool
    by_max: bool
    relative: bool
    rolls: bool

    @classmethod
    def of(cls, state: LayerState, static: torch.Tensor | None, normaliser: torch.Tensor | None) -> Rule:
        policy = state.policy
        return cls(
            int(policy.priority),
            policy.priority.fixed,
            state.static is not None or state.ranking is not None,
            static is not None,
            state.evicted_at is not None,
            policy.group_reduce == "max",
            normaliser is not None,
            state.rotary is not None,
        )


class Angles(NamedTuple):
    """Cosines and sines, float32 [N, R / 2], of virtual positions 0 .. N-1."""

    cos: NDArray[np.float32]
    sin: NDArray[np.float32]

    @classmethod
    def of(cls, state: LayerState, valid: torch.Tensor, room: int) -> Angles:
        """Of all ranks by age that new tokens meet, and of `room` positions more; a stand-in where none roll."""
        if state.rotary is None:
            return cls(NOTHING[0], NOTHING[0])
        held = int(torch.minimum(state.seen + valid.sum(dim=1), state.caps.k).max())
        return cls(*(table.numpy() for table in state.rotary.tables(held + room, held, state.keys.device)))
