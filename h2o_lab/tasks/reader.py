"""Token sequences through a model under one policy: caches, calls, passes, and the logits that were asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from h2o_lab.attention import EvictionCache, eviction_attention
from h2o_lab.attention.feeding import calls, column_sums
from h2o_lab.attention.hook import position_limit
from h2o_lab.attention.share import HeadShare
from h2o_lab.cells import Journal
from h2o_lab.errors import UserError
from h2o_lab.models.placement import input_device
from h2o_lab.policies import Policy

if TYPE_CHECKING:
    from h2o_lab.checks import Plan
    from h2o_lab.config import Config
    from h2o_lab.models import LoadedModel
    from h2o_lab.stats import Recorder


@dataclass
class Reader:
    """Reads right-padded batches of token sequences; use it inside `open()`.

    Args:
        model: a causal language model in eval mode.
        policy: what is kept.
        prefill: `evict` or `full` (see `EvictionCache`).
        positions: `original` or `rolling` (see `eviction_attention`).
        executor: see `attend`.
        seed: seed of policies that draw.
        journal: remembers what has been evaluated; see `h2o_lab.cells`.
        recorder: is told what attention does in the first call of each text; None for nobody.

    Attributes:
        tokens: tokens fed to the model so far, first passes included.
        share: the heads of the model that this process has.
    """

    model: PreTrainedModel
    policy: Policy
    prefill: str = "evict"
    positions: str = "original"
    executor: str = "auto"
    seed: int = 0
    journal: Journal = field(default_factory=Journal)
    recorder: Recorder | None = None
    tokens: int = field(default=0, init=False)
    share: HeadShare = field(init=False)

    def __post_init__(self) -> None:
        self.share = HeadShare.of(self.model)

    @classmethod
    def of(
        cls, cfg: Config, plan: Plan, loaded: LoadedModel, journal: Journal, recorder: Recorder | None = None
    ) -> Reader:
        """The reader of a cell."""
        how = (cfg.prefill, cfg.positions, cfg.executor, cfg.seed)
        return cls(loaded.model, plan.policy, *how, journal, recorder)

    @contextmanager
    def open(self) -> Iterator[None]:
        """The context in which to read: no gradients, and the model attends through the caches."""
        with torch.inference_mode(), eviction_attention(self.model, self.positions):
            yield

    @contextmanager
    def recording(self, wanted: bool) -> Iterator[None]:
        """The context in which what is read is told to the recorder, or not."""
        recorder = self.recorder
        self.recorder = recorder if wanted else None
        try:
            yield
        finally:
            self.recorder = recorder

    def start(
        self,
        texts: Sequence[Sequence[int]],
        wanted: torch.Tensor,
        k: Sequence[int] | None,
        n: Sequence[int],
        capacity: int | None = None,
        record: bool = False,
    ) -> tuple[torch.Tensor, EvictionCache]:
        """Read texts from their beginning, with a first pass where the policy needs one.

        Args:
            texts: token ids, none empty.
            wanted: bool [B, T], the columns whose logits to return.
            k: budget of each text, in entries; None for the full cache.
            n: the tokens that a fractional budget counts, for each text.
            capacity, record: see `EvictionCache`.

        Returns:
            float [N, V], logits of the wanted columns, row by row, on the host; and the cache.

        Raises:
            UserError: a layer of the model does not attend through the cache.
        """
        given = None
        if self.policy.two_passes:
            ids, mask, positions = self._columns(texts, torch.zeros(len(texts), dtype=torch.int64), wanted.shape[1])
            self.tokens += int(mask.sum())
            given = column_sums(
                self.model,
                self.policy,
                self.executor,
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
            )
        cache = EvictionCache(
            self.model.config.get_text_config(decoder=True).num_hidden_layers,
            self.policy,
            list(k) if k is not None else None,
            prefill=self.prefill,
            executor=self.executor,
            seed=self.seed,
            capacity=capacity,
            lengths=list(n),
            given=given,
            record=record or (self.recorder is not None and self.policy.evicts),
            share=self.share,
        )
        if self.recorder is not None:
            cache.watch = self.recorder.saw
        logits = self.go_on(texts, wanted, cache)
        if self.recorder is not None:
            self.recorder.conclude(texts)
            cache.watch = None
            if not record:
                cache.forget_evictions()
        if len(cache.states) < len(cache.evicting):
            raise UserError(f"{type(self.model).__name__} does not use its cache in every layer: it cannot be run.")
        return logits, cache

    def go_on(self, texts: Sequence[Sequence[int]], wanted: torch.Tensor, cache: EvictionCache) -> torch.Tensor:
        """Read on, behind what the cache has seen; arguments and result as in `start`, texts may be empty."""
        seen = cache.seen if cache.states else torch.zeros(len(texts), dtype=torch.int64)
        ids, mask, positions = self._columns(texts, seen, wanted.shape[1])
        self.tokens += int(mask.sum())
        parts = []
        limited = position_limit(self.model.config) is not None
        # only the newest columns of a mask are looked at; models with a position table count the others too
        before = torch.arange(cache.evicting[0].length if limited else 0) < seen[:, None]
        for columns in calls(cache, mask):
            newest = mask[:, : columns.stop] if limited else mask[:, columns]
            whole = torch.cat([before.to(mask.device), newest], dim=1)
            logits = self.model(
                input_ids=ids[:, columns],
                attention_mask=whole,
                position_ids=positions[:, columns],
                logits_to_keep=wanted[:, columns].to(ids.device),
                cache=cache,
            ).logits.cpu()
            parts.append((columns, logits))
        return _by_row(parts, wanted)

    def agreed(self, tokens: Sequence[int]) -> list[int]:
        """Tokens that were drawn, as the first process drew them: all that share a model go on with the same."""
        if self.share.count == 1:
            return list(tokens)
        drawn = torch.tensor(tokens, device=input_device(self.model))
        torch.distributed.broadcast(drawn, 0)
        return drawn.tolist()

    def _columns(
        self, texts: Sequence[Sequence[int]], seen: torch.Tensor, width: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(ids int64, mask bool, position ids int64), each [B, width], on the model's device."""
        lengths = torch.tensor([len(text) for text in texts])
        ids = torch.zeros(len(texts), width, dtype=torch.int64)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = torch.tensor(text, dtype=torch.int64)
        column = torch.arange(width)
        mask = column < lengths[:, None]
        positions = seen[:, None] + torch.minimum(column, (lengths - 1).clamp(min=0)[:, None])
        device = input_device(self.model)
        return ids.to(device), mask.to(device), positions.to(device)


def _by_row(parts: list[tuple[slice, torch.Tensor]], wanted: torch.Tensor) -> torch.Tensor:
    """Put the logits of several calls in the order of one."""
    if len(parts) == 1:
        return parts[0][1]
    order = torch.empty(wanted.shape, dtype=torch.int64)
    start = 0
    for columns, logits in parts:
        chosen = wanted[:, columns]
        part = torch.empty(chosen.shape, dtype=torch.int64)
        part[chosen] = torch.arange(start, start + len(logits))
        order[:, columns] = part
        start += len(logits)
    return torch.cat([logits for _, logits in parts])[order[wanted]]
