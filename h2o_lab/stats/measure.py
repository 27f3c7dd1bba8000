"""One layer's attention over one text, reduced to numbers as it is computed: no T x T map is kept."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

ROWS = 128
"""Queries taken at once."""
ABSENT = -1e30
"""Logit of an entry that a query does not see; finite, so that 0 times it is 0."""


class LayerStats(NamedTuple):
    """What is measured of one layer and text; H heads of the cache, C checkpoints, n tokens.

    Numbers over queries are means over a head's queries between two checkpoints, all query heads of its group.

    Attributes:
        received: float32 [C, H, n], attention each token got from all queries up to a checkpoint, summed over the
            group.
        below: float32 [H], entries below `threshold` times their row's maximum, of those that were seen.
        seen: float32 [H], entries that queries saw, the group's query heads each counted.
        entropy: float32 [C, H], nats.
        oldest, newest: float32 [C, H], attention on the oldest entry that is held, and on the query's own token.
        retained: float32 [C, H], the share that the entries held have in full attention.
        held: float32 [C, H], entries that the last query before a checkpoint saw.
        age: float32 [C, H], their mean age in tokens.
        fair: float32 [H, n], what each token would have received if every query had shared its attention out
            equally among the entries that it saw; like `received`, of the whole text and the group.
    """

    received: torch.Tensor
    below: torch.Tensor
    seen: torch.Tensor
    entropy: torch.Tensor
    oldest: torch.Tensor
    newest: torch.Tensor
    retained: torch.Tensor
    held: torch.Tensor
    age: torch.Tensor
    fair: torch.Tensor


class Rows(NamedTuple):
    """What is measured of a block of queries: `received` and `below` as in `LayerStats`, the others float32
    [4, H], sums of entropy, oldest, newest and retained over queries and group."""

    received: torch.Tensor
    below: torch.Tensor
    sums: torch.Tensor


def measure(
    q: torch.Tensor,
    k: torch.Tensor,
    scale: float,
    evicted_at: torch.Tensor | None,
    checkpoints: list[int],
    threshold: float,
    fused: bool | None = None,
) -> LayerStats:
    """Attention of a text's queries over its own tokens.

    Args:
        q: [H * G, n, D], query heads of one KV head side by side.
        k: [H, n, D].
        scale: factor on the dot products.
        evicted_at: int32 [H, n], see `LayerState.evicted_at`; None where nothing was evicted.
        checkpoints: numbers of tokens, ascending; the last is n.
        threshold: an entry below this share of its row's maximum counts as zero (paper, section 3.1).
        fused: whether the compiled loop does it (on the CPU); None for yes where it can.
    """
    heads, length, size = k.shape
    query = q.view(heads, -1, length, size).float() * scale
    keys = k.float().transpose(1, 2)
    group = query.shape[1]
    received = torch.zeros(heads, length, device=q.device)
    below = torch.zeros(heads, device=q.device)
    at, over, first = [], [], 0
    for last in checkpoints:
        sums = torch.zeros(4, heads, device=q.device)
        for start in range(first, last, ROWS):
            end = min(start + ROWS, last)
            logits = query[:, :, start:end].reshape(heads, -1, size) @ keys[:, :, :end]
            logits = logits.view(heads, group, end - start, end)
            gone = evicted_at[:, :end].contiguous() if evicted_at is not None else None
            run = _fused if fused or (fused is None and q.device.type == "cpu") else plain
            rows = run(logits, start, gone, threshold)
            received[:, :end] += rows.received
            below += rows.below
            sums += rows.sums
        at.append(received.clone())
        over.append(sums / (group * (last - first)))
        first = last
    if evicted_at is None:
        evicted_at = torch.full((heads, length), length, device=q.device)
    held, age = _occupancy(evicted_at, checkpoints)
    seen, fair = _views(evicted_at)
    entropy, oldest, newest, retained = torch.stack(over, dim=1)
    received_at = torch.stack(at)
    return LayerStats(received_at, below, group * seen, entropy, oldest, newest, retained, held, age, group * fair)


def plain(logits: torch.Tensor, start: int, gone: torch.Tensor | None, threshold: float) -> Rows:
    """A block of queries in tensor operations: the specification.

    Args:
        logits: float32 [H, G, r, e] of queries start .. start + r - 1 = e - 1; changed.
        start: position of the first query.
        gone: int32 [H, e], or None.
        threshold: see `measure`.
    """
    count, end = logits.shape[2:]
    place = torch.arange(start, end, device=logits.device)[:, None]
    token = torch.arange(end, device=logits.device)
    logits.masked_fill_(token > place, ABSENT)
    everything = logits.logsumexp(dim=-1)
    seen = (token <= place).expand(len(logits), 1, count, end)
    if gone is not None:
        seen = seen & (gone[:, None, None] > place)
        logits.masked_fill_(~seen, ABSENT)
    top = logits.amax(dim=-1, keepdim=True)
    p = (logits - top).exp_()
    total = p.sum(dim=-1)
    log_total = top.squeeze(-1) + total.log()
    entropy = log_total - torch.linalg.vecdot(p, logits) / total
    p /= total[..., None]
    small = (logits < top + math.log(threshold)) & seen
    oldest = seen.int().argmax(dim=-1, keepdim=True).expand(*p.shape[:3], 1)
    numbers = (
        entropy,
        p.gather(-1, oldest).squeeze(-1),
        p[..., start:].diagonal(dim1=-2, dim2=-1),
        (log_total - everything).exp(),
    )
    return Rows(
        p.sum(dim=(1, 2)), small.sum(dim=(1, 2, 3)).float(), torch.stack([x.sum(dim=(1, 2)) for x in numbers])
    )


def _fused(logits: torch.Tensor, start: int, gone: torch.Tensor | None, threshold: float) -> Rows:
    from h2o_lab.stats.fused import run

    return run(logits, start, gone, threshold)


def _occupancy(evicted_at: torch.Tensor, checkpoints: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """(entries held by the last query before each checkpoint [C, H], their mean age [C, H])."""
    last = torch.tensor(checkpoints, device=evicted_at.device)[:, None, None] - 1
    token = torch.arange(checkpoints[-1], device=evicted_at.device)
    present = (token <= last) & (evicted_at > last)
    held = present.sum(dim=-1).float()
    return held, ((last - token) * present).sum(dim=-1) / held


def _views(evicted_at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(entries seen by all queries of a head [H], what each token gets where they share equally [H, n])."""
    heads, length = evicted_at.shape
    token = torch.arange(length, device=evicted_at.device)
    gone = evicted_at.long().clamp(max=length)
    left = torch.zeros(heads, length + 1, device=evicted_at.device).scatter_add_(1, gone, torch.ones(gone.shape))
    held = token + 1 - left[:, :length].cumsum(dim=1)
    shares = torch.nn.functional.pad((1 / held.double()).cumsum(dim=1), (1, 0))
    return (gone - token).sum(dim=-1).float(), (shares.gather(1, gone) - shares[:, :length]).float()
