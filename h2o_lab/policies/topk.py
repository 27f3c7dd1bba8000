"""Sparse attention by the query's own largest logits."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from h2o_lab.policies.base import Policy
from h2o_lab.policies.budget import share
from h2o_lab.policies.h2o import H2O
from h2o_lab.policies.priority import Priority
from h2o_lab.policies.sparse import Glance, SparsePolicy, largest


@dataclass(frozen=True, kw_only=True)
class TopK(SparsePolicy):
    """Each query attends to its own k largest logits; everything stays in memory."""

    name: ClassVar[str] = "topk"
    source: ClassVar[str] = "H2O, Table 8"
    neighbours: ClassVar[str] = "An upper bound on choosing by content: it chooses after seeing the query."

    priority: Priority = Priority.POSITION

    def visible(self, glance: Glance) -> torch.Tensor:
        return largest(glance.logits, glance.k)


@dataclass(frozen=True, kw_only=True)
class TopKH2(SparsePolicy):
    """Half of k: the query's own largest logits; half: what h2o with k/2 holds; everything stays in memory."""

    name: ClassVar[str] = "topk_h2"
    source: ClassVar[str] = "H2O, Table 8"
    neighbours: ClassVar[str] = "topk with half of it decided before the query is seen."

    heavy_fraction: float = 0.5
    """Share of k for what `h2o` holds, rounded down, at least one entry."""
    priority: Priority = Priority.POSITION

    def companion(self) -> Policy:
        return H2O(group_reduce=self.group_reduce)

    def companion_entries(self, k: int) -> int:
        return max(1, share(self.heavy_fraction, k))

    def visible(self, glance: Glance) -> torch.Tensor:
        assert glance.heavy is not None
        heavy = glance.heavy[:, :, None]
        own = glance.k - torch.tensor([self.companion_entries(k) for k in glance.k.tolist()])
        return heavy | largest(glance.logits.masked_fill(heavy, -torch.inf), own)
