"""Many tokens in one compiled pass on the CPU.

A lane is one KV head of one sequence, or all heads of a sequence where they keep the same tokens. For the time
of the pass its keys lie in panels and its values in rows of a workspace of k + BLOCK columns, so that a block of
tokens is two matrix products with the policy's walk in between, all in one thread and its nearest caches.
Threads take turns with lanes, so that three lanes keep two threads busy. The mathematics is that of the
reference executor, O(T k D) work and O(k) memory: no T x T map is formed.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from h2o_lab.attention.arrays import Angles, Entries, Rule, Tokens
from h2o_lab.attention.lane import NOWHERE, enter, leave, load, place, roll, unload, walk
from h2o_lab.attention.rolling import ROOM
from h2o_lab.attention.state import LayerState
from h2o_lab.attention.tiles import COLUMNS, ROWS, dot, dot_panels, whole

BLOCK = 32
"""Tokens between two matrix products."""
PARTS = 8
"""Parts that a lane's tokens are cut into where threads go round the lanes."""


class Work(NamedTuple):
    """Memory of the pass.

    Attributes:
        panels, rows: of each lane and head, keys as queries meet them, and values.
        raw: keys without rotation, where positions roll.
        positions, scores, ranks: of each lane and column, what `LayerState` keeps per entry.
        places, moved: see `h2o_lab.attention.rolling`.
        owner: which of the tokens given a column holds, NOWHERE if none of them.
        offset: what is added to a column's logits: 0 while it is alive, -inf otherwise.
        guard: a column's position where a pattern has it, -1 elsewhere.
        seen, ahead: of each lane, tokens so far, and the place of the next one.
        queries, weights: of each worker and head, a block's queries, their logits or probabilities.
        mixed: of each worker, the outputs of a head.
        freed: of each worker, the columns whose entries a block has evicted.
    """

    panels: NDArray[np.float32]
    rows: NDArray[np.float32]
    raw: NDArray[np.float32]
    positions: NDArray[np.int32]
    scores: NDArray[np.float32]
    ranks: NDArray[np.float32]
    places: NDArray[np.int64]
    moved: NDArray[np.bool_]
    owner: NDArray[np.int64]
    offset: NDArray[np.float32]
    guard: NDArray[np.int32]
    seen: NDArray[np.int64]
    ahead: NDArray[np.int64]
    queries: NDArray[np.float32]
    weights: NDArray[np.float32]
    mixed: NDArray[np.float32]
    freed: NDArray[np.int64]

    @classmethod
    def of(cls, tokens: Tokens, lanes: int, workers: int, held: int, rolls: bool) -> Work:
        """For at most so many entries held. What a product may meet beyond its end is zero at first: of the numbers
        that lie about in memory, some (denormal ones) would take it ten times as long."""
        batch, heads, _, key_size = tokens.k.shape
        together, group = batch * heads // lanes, tokens.q.shape[1] // heads
        width, most = whole(held + BLOCK, COLUMNS), whole(group * BLOCK, ROWS)
        broad = whole(tokens.v.shape[3], COLUMNS)
        per_column = lanes, width
        return cls(
            panels=np.zeros((lanes, together, width // COLUMNS, key_size, COLUMNS), np.float32),
            rows=np.zeros((lanes, together, width, broad), np.float32),
            raw=np.empty((lanes, together, width if rolls else 0, key_size), np.float32),
            positions=np.empty(per_column, np.int32),
            scores=np.empty(per_column, np.float32),
            ranks=np.empty(per_column, np.float32),
            places=np.empty(per_column, np.int64),
            moved=np.empty(per_column, np.bool_),
            owner=np.empty(per_column, np.int64),
            offset=np.empty(per_column, np.float32),
            guard=np.empty(per_column, np.int32),
            seen=np.empty(lanes, np.int64),
            ahead=np.empty(lanes, np.int64),
            queries=np.zeros((workers, together, most, key_size), np.float32),
            weights=np.zeros((workers, together, most, width), np.float32),
            mixed=np.empty((workers, most, broad), np.float32),
            freed=np.empty((workers, width), np.int64),
        )


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    state: LayerState,
    *,
    scale: float,
    valid: torch.Tensor,
    static: torch.Tensor | None,
    normaliser: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `h2o_lab.attention.executors.attend` and the reference executor; with a normaliser there is no output."""
    batch, heads = k.shape[:2]
    lanes = batch * (heads if state.policy.scope == "head" else 1)
    counts = valid.sum(dim=1)
    held = int(torch.minimum(state.seen + counts, state.caps.k).max())
    order = turns(lanes, numba.get_num_threads())
    out = torch.empty(*q.shape[:3], v.shape[-1])
    slots = np.full(k.shape[:3], NOWHERE, np.int64)
    tokens = Tokens.of(q, k, v, valid, static, normaliser)
    _passage(
        tokens,
        Entries.of(state),
        Rule.of(state, static, normaliser),
        Angles.of(state, valid, ROOM + BLOCK),
        Work.of(tokens, lanes, order.shape[1], held, state.rotary is not None),
        order,
        np.float32(scale),
        slots,
        out.numpy(),
    )
    for held_here, given in ((state.keys, k), (state.values, v)):
        place(_bytes(held_here), _bytes(given.contiguous()), slots)
    np.add(state.seen.numpy(), counts.numpy(), out=state.seen.numpy())
    return out.to(q.dtype)


def _bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    return tensor.view(torch.uint8).numpy()


@cache
def turns(lanes: int, workers: int) -> NDArray[np.int64]:
    """Which lane each worker serves at each turn, and in which part of its tokens.

    No lane is served twice in a turn, and its parts come in order. Where lanes divide evenly, a lane is served
    whole; otherwise the last ones go round in `PARTS` parts.

    Returns:
        int64 [turns, workers, 3]: lane, part, parts; the lane is NOWHERE where a worker waits.
    """
    workers = min(workers, lanes)
    shared = workers + lanes % workers if lanes % workers else 0
    tasks = [(lane, 0, 1) for lane in range(lanes - shared)]
    tasks += [(lanes - shared + lane, part, PARTS) for part in range(PARTS) for lane in range(shared)]
    tasks += [(NOWHERE, 0, 1)] * (-len(tasks) % workers)
    return np.array(tasks, np.int64).reshape(-1, workers, 3)


@numba.njit(parallel=True, cache=True, error_model="numpy")
def _passage(tokens, entries, rule, angles, work, order, scale, slots, out):
    heads, n = tokens.k.shape[1:3]
    group, together = tokens.q.shape[1] // heads, work.rows.shape[1]
    blocks = (n + BLOCK - 1) // BLOCK
    for turn in range(len(order)):
        for worker in numba.prange(order.shape[1]):
            lane, part, parts = order[turn, worker]
            if lane == NOWHERE:
                continue
            b, first = lane * together // heads, lane * together % heads
            if part == 0:
                load(entries, rule, angles, work, lane, b, first)
            for block in range(part * blocks // parts, (part + 1) * blocks // parts):
                start, stop = block * BLOCK, min((block + 1) * BLOCK, n)
                size, held = stop - start, min(work.seen[lane], entries.caps[b, 0])
                if rule.rolls:
                    roll(angles, work, lane, held)
                caps, queries, weights = entries.caps[b], work.queries[worker], work.weights[worker]
                enter(tokens, caps, rule, angles, work, worker, lane, held, b, first, start, stop, scale)
                for h in range(together):
                    dot_panels(queries[h], work.panels[lane, h], weights[h], group * size, held + size)
                gone = walk(tokens, entries, rule, angles, work, worker, lane, held, b, first, start, stop)
                if not rule.relative:
                    mixed = work.mixed[worker]
                    for h in range(together):
                        dot(weights[h], work.rows[lane, h], mixed, group * size, held + size)
                        for g in range(group):
                            target = out[b, (first + h) * group + g, start:stop]
                            target[:] = mixed[g * size : (g + 1) * size, : out.shape[3]]
                leave(rule, work, worker, lane, held, gone, size)
            if part == parts - 1:
                unload(entries, rule, work, lane, b, first, slots)
