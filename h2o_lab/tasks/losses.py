"""Losses of tokens under a policy: whole texts in batches, and streams of any length."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from h2o_lab.attention import EvictionCache
from h2o_lab.errors import UserError
from h2o_lab.tasks.reader import Reader

CHUNK = 512


@dataclass(frozen=True)
class Chunk:
    """A part of a batch of texts, read.

    Attributes:
        first: position of its first token.
        losses: float32 [B, t], negative log-likelihood of tokens first+1 .. first+t given all before, nats.
        seconds: time that the model took.
        cache: the cache after it.
    """

    first: int
    losses: torch.Tensor
    seconds: float
    cache: EvictionCache


def read_chunks(
    reader: Reader,
    ids: torch.Tensor,
    k: int | None,
    *,
    chunk: int = CHUNK,
    record: bool = False,
    cache: EvictionCache | None = None,
) -> Iterator[Chunk]:
    """Read texts of one length in chunks, the cache carried along; memory does not grow with their length.

    The result does not depend on `chunk`. Policies that look ahead get the whole text at once, and `prefill: full`
    takes the first chunk for its prompt. Use it inside `reader.open()`.

    Args:
        reader: the model and the policy.
        ids: int64 [B, T], token ids.
        k: the budget in entries; None for the full cache.
        chunk: tokens read at once.
        record: see `EvictionCache`.
        cache: one that has read the beginning of these texts; reading goes on behind it.

    Raises:
        UserError: the model's numbers are not finite.
    """
    batch, length = ids.shape
    chunk = chunk if reader.policy.causal else length
    begin = int(cache.seen[0]) if cache is not None else 0
    for first in range(begin, length - 1, chunk):
        # the last token is only a target
        part = ids[:, first : min(first + chunk, length - 1)]
        wanted = torch.ones(part.shape, dtype=torch.bool)
        start = time.perf_counter()
        if cache is None:
            budgets = [k] * batch if k is not None else None
            logits, cache = reader.start(part.tolist(), wanted, budgets, [length] * batch, record=record)
        else:
            logits = reader.go_on(part.tolist(), wanted, cache)
        seconds = time.perf_counter() - start
        targets = ids[:, first + 1 : first + 1 + part.shape[1]].reshape(-1, 1)
        logits = logits.float()
        losses = logits.logsumexp(dim=-1) - logits.gather(1, targets).squeeze(1)
        if not losses.isfinite().all():
            raise UserError(
                f"the model's log-likelihoods are not finite in {reader.model.dtype}: use model.dtype=float32 or "
                "bfloat16, or check its weights."
            )
        yield Chunk(first, losses.view(batch, -1), seconds, cache)


def token_losses(reader: Reader, ids: torch.Tensor, k: int | None, *, chunk: int = CHUNK) -> torch.Tensor:
    """float32 [B, T - 1], negative log-likelihood of tokens 1 .. T-1, nats; arguments as in `read_chunks`."""
    return torch.cat([part.losses for part in read_chunks(reader, ids, k, chunk=chunk)], dim=1)


def perplexity(losses: torch.Tensor) -> float:
    """exp of the mean loss per token."""
    return losses.double().mean().exp().item()
