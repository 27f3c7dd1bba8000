"""Static patterns of the Sparse Transformer, alone and rescued by heavy hitters."""

from dataclasses import dataclass
from typing import ClassVar

from h2o_lab.policies.base import Policy
from h2o_lab.policies.priority import Priority


@dataclass(frozen=True, kw_only=True)
class Strided(Policy):
    """Keeps half of k for recent tokens and half for every stride-th position."""

    name: ClassVar[str] = "strided"
    source: ClassVar[str] = "Sparse Transformer (Child et al. 2019), Section 4.2; H2O, Table 2"
    neighbours: ClassVar[str] = "h2o with its heavy hitters replaced by positions that no content decides."

    recent_fraction: float | None = 0.5
    pattern: str | None = "strided"
    pattern_fraction: float = 0.5
    priority: Priority = Priority.POSITION


@dataclass(frozen=True, kw_only=True)
class Fixed(Policy):
    """Keeps half of k for recent tokens and half for the last few positions of every block."""

    name: ClassVar[str] = "fixed"
    source: ClassVar[str] = "Sparse Transformer (Child et al. 2019), Section 4.2; H2O, Table 2"
    neighbours: ClassVar[str] = "strided with its positions in runs of block_tail."

    recent_fraction: float | None = 0.5
    pattern: str | None = "fixed"
    pattern_fraction: float = 0.5
    priority: Priority = Priority.POSITION


@dataclass(frozen=True, kw_only=True)
class StridedH2(Policy):
    """Keeps half of k for recent tokens, a quarter for every stride-th position, a quarter for heavy hitters."""

    name: ClassVar[str] = "strided_h2"
    source: ClassVar[str] = "H2O, Table 2 (Sparse Transformer strided with H2)"
    neighbours: ClassVar[str] = "strided with half of its pattern given to heavy hitters."

    recent_fraction: float | None = 0.5
    pattern: str | None = "strided"
    pattern_fraction: float = 0.25
    priority: Priority = Priority.ACCUMULATED


@dataclass(frozen=True, kw_only=True)
class FixedH2(Policy):
    """Keeps half of k for recent tokens, a quarter for ends of blocks, a quarter for heavy hitters."""

    name: ClassVar[str] = "fixed_h2"
    source: ClassVar[str] = "H2O, Table 2 (Sparse Transformer fixed with H2)"
    neighbours: ClassVar[str] = "fixed with half of its pattern given to heavy hitters."

    recent_fraction: float | None = 0.5
    pattern: str | None = "fixed"
    pattern_fraction: float = 0.25
    priority: Priority = Priority.ACCUMULATED
