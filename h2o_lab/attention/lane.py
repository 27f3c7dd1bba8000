"""What a worker of `passage` does with one lane: bring it in, take its tokens block by block, write it back.

A block's tokens take the columns behind the entries held. They meet all of them in one product; then they are
walked through in order, which decides what is alive for each and turns logits into probabilities; and those that
are still held at the block's end move to the columns of what went.
"""

from __future__ import annotations

import numba
import numpy as np

from h2o_lab.attention.rolling import ROOM, moved_logits, places_by_age, rotate, shift
from h2o_lab.attention.rules import (
    LAST,
    MEAN,
    account,
    normalise,
    pattern_floor,
    to_guards,
    to_means,
    victim,
)
from h2o_lab.attention.tiles import COLUMNS

NOWHERE = -1


@numba.njit(cache=True)
def load(entries, rule, angles, work, lane, b, first):
    """Bring a lane's entries, those of heads `first` and following, into the workspace."""
    held = min(entries.seen[b], entries.caps[b, 0])
    work.seen[lane], work.ahead[lane] = entries.seen[b], held
    for i in range(held):
        work.positions[lane, i] = entries.positions[b, first, i]
        work.scores[lane, i] = entries.scores[b, first, i]
        work.owner[lane, i] = NOWHERE
        if rule.ranked:
            work.ranks[lane, i] = entries.ranks[b, first, i]
    if rule.rolls:
        places_by_age(work.places[lane], work.positions[lane, :held])
        work.moved[lane, :] = False
    for h in range(work.rows.shape[1]):
        for i in range(held):
            _to_row(work.rows[lane, h], i, entries.values[b, first + h, i])
            if rule.rolls:
                _to_row(work.raw[lane, h], i, entries.keys[b, first + h, i])
                _turn(angles, work, lane, h, i)
            else:
                _to_panel(work.panels[lane, h], i, entries.keys[b, first + h, i])


@numba.njit(cache=True)
def _to_panel(panels, column, key):
    """Put a key into a column of its panel."""
    panel, place = column // COLUMNS, column % COLUMNS
    for d in range(len(key)):
        panels[panel, d, place] = key[d]


@numba.njit(cache=True)
def _to_row(rows, column, value):
    """Put a value into a row, which may be longer."""
    for d in range(len(value)):
        rows[column, d] = value[d]


@numba.njit(cache=True)
def _turn(angles, work, lane, h, column):
    """Rotate a column's key by its place."""
    at, target = work.places[lane, column], work.panels[lane, h, column // COLUMNS, :, column % COLUMNS]
    rotate(target, work.raw[lane, h, column], angles.cos[at], angles.sin[at])


@numba.njit(cache=True)
def roll(angles, work, lane, held):
    """Before a block: rotate anew what has moved, or everything where the frame is set back."""
    back = max(work.ahead[lane] - held, 0)
    if back < ROOM:
        back = 0
    work.ahead[lane] -= back
    for i in range(held):
        work.places[lane, i] -= back
        if back or work.moved[lane, i]:
            for h in range(work.rows.shape[1]):
                _turn(angles, work, lane, h, i)
        work.moved[lane, i] = False


@numba.njit(cache=True)
def enter(tokens, caps, rule, angles, work, worker, lane, held, b, first, start, stop, scale):
    """Put a block's tokens behind the entries held, and the queries of each head, scaled, below each other."""
    size, group = stop - start, tokens.q.shape[1] // tokens.k.shape[1]
    now = work.seen[lane]
    for j in range(size):
        column, token = held + j, start + j
        work.positions[lane, column] = now if tokens.valid[b, token] else -1
        work.scores[lane, column] = 0
        work.owner[lane, column] = token
        if rule.rolls:
            work.places[lane, column] = work.ahead[lane]
            work.moved[lane, column] = False
            work.ahead[lane] += tokens.valid[b, token]
        if rule.ranked:
            work.ranks[lane, column] = tokens.static[b, first, token] if rule.static else np.float32(0.0)
        if not tokens.valid[b, token]:
            continue  # whatever a padding token has is not looked at: it may be NaN
        now += 1
        for h in range(work.rows.shape[1]):
            head = first + h
            _to_row(work.rows[lane, h], column, tokens.v[b, head, token])
            if rule.rolls:
                _to_row(work.raw[lane, h], column, tokens.k[b, head, token])
                _turn(angles, work, lane, h, column)
            else:
                _to_panel(work.panels[lane, h], column, tokens.k[b, head, token])
            for g in range(group):
                query, row = tokens.q[b, head * group + g, token], work.queries[worker, h, g * size + j]
                if rule.rolls:
                    at = work.places[lane, column]
                    rotate(row, query, angles.cos[at], angles.sin[at])
                    for d in range(len(row)):
                        row[d] *= scale
                else:
                    for d in range(len(row)):
                        row[d] = query[d] * scale
    work.offset[lane, :held] = 0
    work.offset[lane, held : held + size] = -np.inf
    work.guard[lane, : held + size] = -1
    if caps[6] > 0:
        end = held + size
        to_guards(work.guard[lane, :end], work.positions[lane, :end], caps[4], caps[5], caps[6])


@numba.njit(cache=True, error_model="numpy")
def walk(tokens, entries, rule, angles, work, worker, lane, held, b, first, start, stop):
    """Take a block's tokens one after the other: logits become probabilities, zero for what is not held.

    Returns:
        How many of the entries held before have gone; `work.freed` has their columns.
    """
    cap, recent, sink, share, period, offset_of_pattern, broad = entries.caps[b]
    sink = np.int32(sink)
    heads, size = work.rows.shape[1], stop - start
    group = tokens.q.shape[1] // tokens.k.shape[1]
    positions, scores, offset = work.positions[lane], work.scores[lane], work.offset[lane]
    end = held + size
    received = np.empty(end, np.float32)
    turned = np.empty(tokens.k.shape[3], np.float32)
    source = scores
    if rule.ranked:
        source = work.ranks[lane]
    elif rule.fixed:
        source = np.zeros(end, np.float32)
    values = source
    if rule.priority == MEAN:
        values = np.empty(end, np.float32)
    floor, total_log = np.int32(0), np.float32(0.0)
    now, alive, gone = work.seen[lane], held, 0
    for j in range(size):
        if not tokens.valid[b, start + j]:
            for h in range(heads):
                for g in range(group):
                    work.weights[worker, h, g * size + j, :end] = 0
            continue
        new = held + j
        if alive == cap:
            newest = np.int32(now - recent)
            if rule.priority == MEAN:
                to_means(values, source, positions, new, np.int32(now))
            if broad > 0:
                floor = np.int32(pattern_floor(now - recent, share, period, offset_of_pattern, broad))
            out = victim(new, positions, values, offset, work.guard[lane], newest, sink, floor)
            offset[out] = -np.inf
            if rule.records:
                for h in range(heads):
                    entries.evicted_at[b, first + h, positions[out]] = now
            alive -= 1
            if out < held:
                work.freed[worker, gone] = out
                gone += 1
            if rule.rolls:
                shift(positions[out], new, positions, offset, work.places[lane], work.moved[lane])
        offset[new] = 0
        alive += 1
        now += 1
        for h in range(heads):
            weights = work.weights[worker, h]
            if rule.rolls:
                queries, raw = work.queries[worker, h, : group * size], work.raw[lane, h]
                places, moved = work.places[lane], work.moved[lane]
                moved_logits(weights, queries, j, size, new, moved, offset, raw, places, angles, turned)
            for g in range(group):
                if rule.relative:
                    total_log = tokens.normaliser[b, (first + h) * group + g, start + j]
                row = weights[g * size + j, :end]
                normalise(row, offset, received, new + 1, g == 0, rule.by_max, rule.relative, total_log)
            account(scores, received, new + 1, rule.priority == LAST and h == 0)
    work.seen[lane] = now
    return gone


@numba.njit(cache=True)
def leave(rule, work, worker, lane, held, gone, size):
    """Move a block's tokens that are still held to the columns that became free."""
    free = held
    for column in range(held, held + size):
        if work.offset[lane, column] != 0:
            continue
        if gone > 0:
            gone -= 1
            target = work.freed[worker, gone]
        else:
            target = free
            free += 1
        if target == column:
            continue
        here, there = column // COLUMNS, target // COLUMNS
        for h in range(work.rows.shape[1]):
            for d in range(work.panels.shape[3]):
                number = work.panels[lane, h, here, d, column % COLUMNS]
                work.panels[lane, h, there, d, target % COLUMNS] = number
            work.rows[lane, h, target] = work.rows[lane, h, column]
            if rule.rolls:
                work.raw[lane, h, target] = work.raw[lane, h, column]
        work.positions[lane, target] = work.positions[lane, column]
        work.scores[lane, target] = work.scores[lane, column]
        work.owner[lane, target] = work.owner[lane, column]
        if rule.ranked:
            work.ranks[lane, target] = work.ranks[lane, column]
        if rule.rolls:
            work.places[lane, target] = work.places[lane, column]
            work.moved[lane, target] = work.moved[lane, column]


@numba.njit(cache=True)
def unload(entries, rule, work, lane, b, first, slots):
    """Write back what changed, and name the slots of the tokens that stay."""
    for i in range(min(work.seen[lane], entries.caps[b, 0])):
        for head in range(first, first + work.rows.shape[1]):
            entries.positions[b, head, i] = work.positions[lane, i]
            entries.scores[b, head, i] = work.scores[lane, i]
            if rule.ranked:
                entries.ranks[b, head, i] = work.ranks[lane, i]
            if work.owner[lane, i] != NOWHERE:
                slots[b, head, work.owner[lane, i]] = i


@numba.njit(parallel=True, cache=True)
def place(target, source, slots):
    """target[b, h, slots[b, h, j]] = source[b, h, j], row by row, for tokens that stay."""
    batch, heads, n = slots.shape
    for lane in numba.prange(batch * heads):
        b, h = lane // heads, lane % heads
        for j in range(n):
            if slots[b, h, j] != NOWHERE:
                target[b, h, slots[b, h, j]] = source[b, h, j]
