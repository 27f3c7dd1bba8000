"""Attention-free eviction by the size of the keys."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from h2o_lab.policies.base import Policy
from h2o_lab.policies.priority import Priority


@dataclass(frozen=True, kw_only=True)
class KeyNorm(Policy):
    """Keeps the tokens whose keys have the smallest norm; a quarter of k is recent.

    Norms are compared in half precision: the same token at two places has the same norm but for rounding, and such
    ties must fall to the older one whatever the chunks a text is fed in.
    """

    name: ClassVar[str] = "knorm"
    source: ClassVar[str] = "Devoto et al. 2024 (a simple L2-norm strategy for KV-cache compression)"
    neighbours: ClassVar[str] = "The cheapest choice by content: no attention is accounted for."

    recent_fraction: float | None = 0.25
    priority: Priority = Priority.STATIC

    def static_priority(self, positions: torch.Tensor, keys: torch.Tensor, layer: int, seed: int) -> torch.Tensor:
        return -keys.float().norm(dim=-1).half().float()
