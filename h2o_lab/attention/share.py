"""Which heads of a model a process has."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel


@dataclass(frozen=True)
class HeadShare:
    """The `index`-th of `count` equal parts of every layer's KV heads, in their order."""

    index: int = 0
    count: int = 1

    @classmethod
    def of(cls, model: PreTrainedModel) -> HeadShare:
        """What `tp_plan` gave to this process; all heads without it."""
        count = getattr(model, "tp_size", None) or 1
        return cls(torch.distributed.get_rank(), count) if count > 1 else cls()

    def part_of(self, numbers: torch.Tensor) -> torch.Tensor:
        """Of numbers [B, H, T] for all heads, those of this share: [B, H / count, T]."""
        return numbers.chunk(self.count, dim=1)[self.index]


WHOLE = HeadShare()
