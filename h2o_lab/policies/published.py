"""What published H2O code computes, each variant under its own name, so that results compare like with like."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from h2o_lab.policies.base import Policy
from h2o_lab.policies.budget import share
from h2o_lab.policies.h2o import H2Only
from h2o_lab.policies.priority import Priority
from h2o_lab.policies.protection import Protection
from h2o_lab.policies.sparse import Glance, SparsePolicy, band, largest


@dataclass(frozen=True, kw_only=True)
class H2OOfficialMask(SparsePolicy):
    """Each query attends to a heavy set of k/2, scored by the unmasked softmax, and the k/2 + 1 newest tokens."""

    name: ClassVar[str] = "h2o_official_mask"
    source: ClassVar[str] = "FMInference/H2O, lm-eval scoring of OPT and GPT-NeoX"
    neighbours: ClassVar[str] = (
        "h2o whose newest token enters the heavy set at once and competes there with what one query gave it; "
        "evicted tokens still shape the scores; the two sets overlap, so that fewer than k are seen."
    )

    recent_fraction: float | None = 0.5
    heavy_fraction: float = 0.5
    """Share of k for the heavy set, rounded down, at least one entry."""
    priority: Priority = Priority.ACCUMULATED
    unmasked_scores: ClassVar[bool] = True

    def companion(self) -> Policy:
        return H2Only(group_reduce=self.group_reduce)

    def companion_entries(self, k: int) -> int:
        return max(1, share(self.heavy_fraction, k))

    def visible(self, glance: Glance) -> torch.Tensor:
        assert glance.heavy is not None
        return glance.heavy[:, :, None] | band(glance, glance.recent + 1)


@dataclass(frozen=True, kw_only=True)
class GlobalH2Mask(SparsePolicy):
    """Each query attends to the k/2 columns with most attention of all queries, and the k/2 + 1 newest tokens."""

    name: ClassVar[str] = "global_h2_mask"
    source: ClassVar[str] = "FMInference/H2O, lm-eval scoring of LLaMA since April 2024"
    neighbours: ClassVar[str] = (
        "global_h2 as a mask: the sums come from the same pass, later queries included, and nothing is evicted."
    )
    causal: ClassVar[bool] = False
    needs_columns: ClassVar[bool] = True

    recent_fraction: float | None = 0.5
    heavy_fraction: float = 0.5
    """Share of k for the heavy columns, rounded down, at least one."""
    priority: Priority = Priority.ACCUMULATED

    def visible(self, glance: Glance) -> torch.Tensor:
        assert glance.columns is not None
        heavy = torch.tensor([max(1, share(self.heavy_fraction, k)) for k in glance.k.tolist()])
        columns = largest(glance.columns, heavy)[:, :, None, None, : len(glance.key)]
        return columns | band(glance, glance.recent + 1)


@dataclass(frozen=True, kw_only=True)
class H2ORealDrop(Policy):
    """Evicts after each forward instead of before, so that a query sees k + 1 entries; meant for prefill=full."""

    name: ClassVar[str] = "h2o_real_drop"
    source: ClassVar[str] = "FMInference/H2O, generation with LLaMA (real drop)"
    neighbours: ClassVar[str] = "h2o with k + 1 entries at the time of attention, k between steps."

    recent_fraction: float | None = 0.5
    priority: Priority = Priority.ACCUMULATED

    def protection(self, k: int, n: int) -> Protection:
        """The recent set is one larger here: the rule counts it before the next token comes in."""
        sizes = super().protection(k, n)
        return sizes._replace(recent=sizes.recent + 1)

    def slots(self, k: int) -> int:
        return k + 1
