"""Scores summed over heads and layers: what H2O's choice per head is compared with."""

from dataclasses import dataclass
from typing import ClassVar

from h2o_lab.policies.base import Policy
from h2o_lab.policies.priority import Priority


@dataclass(frozen=True, kw_only=True)
class SpAtten(Policy):
    """Keeps the same tokens in all layers: half of k recent, the rest by attention summed over the model."""

    name: ClassVar[str] = "spatten"
    source: ClassVar[str] = "H2O, Table 11 and Appendix C.9, after SpAtten (Wang et al. 2021)"
    neighbours: ClassVar[str] = "h2o with one choice for the whole model: layer 0 waits for the last layer."

    recent_fraction: float | None = 0.5
    scope: str = "model"
    priority: Priority = Priority.ACCUMULATED


@dataclass(frozen=True, kw_only=True)
class SpAttenCascade(Policy):
    """Keeps ever fewer tokens in later layers, each set within the one before, by attention summed so far."""

    name: ClassVar[str] = "spatten_cascade"
    source: ClassVar[str] = "SpAtten (Wang et al. 2021), Section III (cascade token pruning)"
    neighbours: ClassVar[str] = "spatten with k falling from 1.5 k to 0.5 k over the layers (taper)."

    recent_fraction: float | None = 0.5
    scope: str = "cascade"
    taper: float = 0.5
    priority: Priority = Priority.ACCUMULATED
