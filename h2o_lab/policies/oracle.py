"""Policies that know the future: the column sums of full attention over all queries of the text."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from h2o_lab.policies.base import Policy
from h2o_lab.policies.priority import Priority
from h2o_lab.policies.sparse import Glance, SparsePolicy, largest


@dataclass(frozen=True, kw_only=True)
class GlobalH2(Policy):
    """Keeps half of k for recent tokens, the rest by the attention of all queries, later ones too."""

    name: ClassVar[str] = "global_h2"
    source: ClassVar[str] = "H2O, Figure 2(d)"
    neighbours: ClassVar[str] = "h2o with an oracle's scores in place of those seen so far."
    causal: ClassVar[bool] = False

    recent_fraction: float | None = 0.5
    priority: Priority = Priority.GIVEN


@dataclass(frozen=True, kw_only=True)
class DropH2(SparsePolicy):
    """Masks the k columns that receive the most full attention, save from their own query."""

    name: ClassVar[str] = "drop_h2"
    source: ClassVar[str] = "H2O, Figure 2(c)"
    neighbours: ClassVar[str] = "The opposite of global_h2: without the heavy hitters."
    causal: ClassVar[bool] = False

    priority: Priority = Priority.GIVEN

    def visible(self, glance: Glance) -> torch.Tensor:
        assert glance.columns is not None
        itself = (glance.key == glance.query[..., None])[:, None, None]
        return itself | ~largest(glance.columns, glance.k)[:, :, None, None, : len(glance.key)]
