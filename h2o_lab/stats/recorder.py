"""Gathers what attention does while texts are read; memory does not grow with their number."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from h2o_lab.stats.measure import LayerStats, measure
from h2o_lab.stats.running import Reservoir, Running
from h2o_lab.stats.summary import (
    gini,
    heavy_hitters,
    mass_of_top,
    overlap_of_heads,
    overlap_of_layers,
    overlap_over_time,
)
from h2o_lab.stats.words import KINDS, kinds_of, neighbours, readable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from h2o_lab.config import StatsConfig

SHARES = torch.arange(101) / 100
"""Shares of the tokens at which the curve of accumulated attention is kept."""
BINS = 20
"""Parts of a text that positions are put into."""
SEEN = ("tokens", "attention", "heavy", "neighbours", "followed", "per_query")
"""Added up for each token of the vocabulary, but for the first of a text, which gets much whatever it is;
`followed` counts occurrences that `FOLLOWERS` queries see."""
FOLLOWERS = 32
"""Queries at least over which attention per query is taken: the last tokens of a text meet few but their own."""


class Recorder:
    """What `stats=attention` records; it is told of every layer by the cache, and of the texts by the reader.

    Recorded is the first call of each text: a question's context, a window, a prompt.

    Args:
        cfg: thresholds and sizes.
        tokenizer: for the strings of the tokens.
    """

    def __init__(self, cfg: StatsConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        self.cfg = cfg
        self.seconds = 0.0
        """Spent here."""
        self.texts = self.tokens = self.skipped = 0
        """Texts and tokens recorded; texts with fewer tokens than checkpoints, which are not."""
        self.heads: dict[str, Running] = {}
        """Per layer and head, [L, H]."""
        self.times: dict[str, Running] = {}
        """Per layer, head and checkpoint, [L, H, C]."""
        self.layers: dict[str, Running] = {}
        """Per layer, [L]."""
        self.curves, self.persistence, self.pairs = Running(), Running(), Running()
        """[L, H, 101], [L, C, C] and [L, L]."""
        self.kinds, self.places = Running(), Running()
        """Tokens and heavy hitters by kind, [L, 3, KINDS]; by position, [L, 3, BINS]."""
        self.values: Reservoir | None = None
        self.vocabulary = np.zeros((len(tokenizer), len(SEEN)))
        """Sums per token of the vocabulary: see `SEEN`."""
        self._tokenizer = tokenizer
        self._strings: dict[int, str] = {}
        self._group = 1  # query heads of a KV head
        self._waiting: list[list[LayerStats | None]] = []
        self._before: tuple[torch.Tensor, Sequence[int]] | None = None

    def warm_up(self, device: torch.device) -> None:
        """Compile or load what measures, so that it is not part of what is timed."""
        nothing = torch.zeros(1, 2, 8, device=device)
        for gone in (None, torch.full((1, 2), 2, dtype=torch.int32, device=device)):
            measure(nothing, nothing, 1.0, gone, [2], self.cfg.threshold)

    def saw(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        scale: float,
        valid: torch.Tensor,
        evicted_at: torch.Tensor | None,
    ) -> None:
        """One layer has attended, in the order of the layers; shapes as in `h2o_lab.attention.attend`."""
        start = time.perf_counter()
        self._group = q.shape[1] // k.shape[1]
        found: list[LayerStats | None] = []
        for row, length in enumerate(valid.sum(dim=1).tolist()):
            columns = valid[row].nonzero().squeeze(-1)
            if length < self.cfg.checkpoints:
                found.append(None)
                continue
            whole = length == valid.shape[1]
            queries, keys = (x[row] if whole else x[row].index_select(1, columns) for x in (q, k))
            gone = evicted_at[row, :, :length] if evicted_at is not None else None
            found.append(measure(queries, keys, scale, gone, self._checkpoints(length), self.cfg.threshold))
        self._waiting.append(found)
        self.seconds += time.perf_counter() - start

    def conclude(self, texts: Sequence[Sequence[int]]) -> None:
        """All layers have attended to these token ids."""
        start = time.perf_counter()
        for row, text in enumerate(texts):
            layers = [found[row] for found in self._waiting]
            known = [layer for layer in layers if layer is not None]
            if known:
                self._add(list(text), known)
            else:
                self.skipped += 1
        self._waiting.clear()
        self.seconds += time.perf_counter() - start

    def _checkpoints(self, length: int) -> list[int]:
        count = self.cfg.checkpoints
        return [length * i // count for i in range(1, count + 1)]

    def _add(self, text: list[int], found: list[LayerStats]) -> None:
        length, share = len(text), self.cfg.heavy_share
        self.texts += 1
        self.tokens += length
        received = torch.stack([layer.received[-1].cpu() for layer in found])  # [L, H, n]
        relative = received / received.mean(dim=-1, keepdim=True)
        heavy = heavy_hitters(received, share)
        self._add_heads(found, received, length)
        self._add_times(found, self._checkpoints(length))
        together = heavy_hitters(relative.mean(dim=1), share)
        self._put(self.layers, "heads_overlap", overlap_of_heads(heavy))
        self.pairs.add(overlap_of_layers(together))
        self._compare_with_last(together, text)
        if self.values is None:
            self.values = Reservoir(len(found), self.cfg.sample_size)
        self.values.add(relative.flatten(1).numpy())
        self._add_tokens(text, relative, received, torch.stack([layer.fair.cpu() for layer in found]), heavy)

    def _add_heads(self, found: list[LayerStats], received: torch.Tensor, length: int) -> None:
        below, seen = (torch.stack([getattr(layer, name).cpu() for layer in found]) for name in ("below", "seen"))
        self._put(self.heads, "sparsity", below / seen)
        self._put(self.heads, "sparsity_of_square", 1 - (seen - below) / (self._group * length**2))
        self._put(self.heads, "gini", gini(received))
        curve = mass_of_top(received, SHARES)
        self.curves.add(curve)
        for percent in (1, 5, 10, 20):
            self._put(self.heads, f"mass_of_top_{percent}", curve[..., percent])

    def _add_times(self, found: list[LayerStats], checkpoints: list[int]) -> None:
        tables = torch.stack(
            [overlap_over_time(layer.received, checkpoints, self.cfg.heavy_share).cpu() for layer in found]
        )  # [L, C, C, H]
        self._put(self.times, "overlap_with_final", tables[:, :, -1].transpose(1, 2))
        self.persistence.add(tables.mean(dim=-1))
        for name in ("entropy", "oldest", "newest", "retained", "held", "age"):
            self._put(self.times, name, torch.stack([getattr(layer, name).cpu().T for layer in found]))

    def _compare_with_last(self, sets: torch.Tensor, text: list[int]) -> None:
        """Overlap of heavy hitters with those of the text before: by position, and by token."""
        if self._before is not None:
            last, words = self._before
            common = min(len(text), len(words))
            one, other = sets[:, :common], last[:, :common]
            least = torch.minimum(one.sum(dim=1), other.sum(dim=1)).clamp(min=1)
            self._put(self.layers, "texts_overlap_positions", (one & other).sum(dim=1) / least)
            shared = [_shared(_chosen(text, a), _chosen(words, b)) for a, b in zip(sets, last, strict=True)]
            self._put(self.layers, "texts_overlap_tokens", torch.tensor(shared))
            everything = _shared(set(text), set(words))
            self._put(self.layers, "texts_overlap_all_tokens", torch.full((len(sets),), everything))
        self._before = sets, text

    def _add_tokens(self, text: list[int], relative, received, fair, heavy: torch.Tensor) -> None:
        """Tensors are [L, H, n]: attention relative to the text's mean, as it is, and if it were shared equally."""
        length = len(text)
        attention, weight = relative.mean(dim=1), heavy.float().mean(dim=1)  # [L, n]
        followed = (torch.arange(length, 0, -1) >= FOLLOWERS).float()
        per_query = followed * (received / fair).mean(dim=(0, 1))
        strings = [self.string(token) for token in text]
        rows = torch.stack([torch.ones_like(attention), attention, weight], dim=1)  # [L, 3, n]
        kinds = torch.from_numpy(kinds_of(strings))
        self.kinds.add(torch.zeros(len(rows), 3, len(KINDS)).index_add_(2, kinds, rows))
        bins = torch.arange(length) * BINS // length
        self.places.add(torch.zeros(len(rows), 3, BINS).index_add_(2, bins, rows))
        beside = torch.from_numpy(neighbours(text, self.cfg.window)).float()
        mean = (attention.mean(dim=0), weight.mean(dim=0))
        numbers = torch.stack([torch.ones(length), *mean, beside, followed, per_query], dim=1)
        np.add.at(self.vocabulary, text[1:], numbers[1:].double().numpy())

    def _put(self, group: dict[str, Running], name: str, value: torch.Tensor) -> None:
        group.setdefault(name, Running()).add(value)

    def string(self, token: int) -> str:
        """A token of the vocabulary as text, its leading space included."""
        if token not in self._strings:
            self._strings[token] = readable(self._tokenizer, token)
        return self._strings[token]

    @property
    def about(self) -> dict[str, Any]:
        """What was recorded, in a few numbers."""
        return {"texts": self.texts, "tokens": self.tokens, "skipped_texts": self.skipped, "seconds": self.seconds}


def _chosen(text: Sequence[int], chosen: torch.Tensor) -> set[int]:
    return {text[place] for place in chosen.nonzero().squeeze(-1).tolist()}


def _shared(one: set[int], other: set[int]) -> float:
    """Share of the smaller set that is in the other too."""
    return len(one & other) / min(len(one), len(other))
