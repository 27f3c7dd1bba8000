"""Prompt compression by an observation window: made for `prefill: full`."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import avg_pool1d, max_pool1d

from h2o_lab.errors import UserError
from h2o_lab.policies.base import Policy
from h2o_lab.policies.fields import check_number, check_word
from h2o_lab.policies.priority import Priority


@dataclass(frozen=True, kw_only=True)
class SnapKV(Policy):
    """Compresses the prompt to what its last 32 queries attend to, pooled over neighbours, and those 32 themselves.

    The cap holds while generating too: what is kept of the prompt stays, and new tokens slide through the window,
    the oldest of those that have left it going first (the authors' code lets the cache grow).
    """

    name: ClassVar[str] = "snapkv"
    source: ClassVar[str] = "SnapKV (Li et al. 2024), Section 4"
    neighbours: ClassVar[str] = "h2o with prefill=full that listens to the prompt's end alone, and smooths."
    compresses_prompt: ClassVar[bool] = True

    recent_tokens: int | None = 32
    """The observation window, and the newest tokens that are safe."""
    kernel_size: int = 5
    """Neighbours pooled, odd."""
    pooling: str = "mean"
    """`mean` or `max`."""
    priority: Priority = Priority.STATIC

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "kernel_size", 1, 10**6, int)
        check_word(self, "pooling", ("mean", "max"))
        if self.kernel_size % 2 == 0:
            raise UserError(f"policy {self.name}: kernel_size must be odd, and is {self.kernel_size}.")
        if self.recent_tokens is None or self.priority is not Priority.STATIC:
            raise UserError(f"policy {self.name} needs recent_tokens, its window, and priority=static.")

    def static_priority(self, positions: torch.Tensor, keys: torch.Tensor, layer: int, seed: int) -> torch.Tensor:
        """Tokens behind the prompt rank below it, and among themselves by age."""
        return torch.full(keys.shape[:3], -1.0, device=keys.device)

    def prompt_priority(self, attention: torch.Tensor) -> torch.Tensor:
        pool = avg_pool1d if self.pooling == "mean" else max_pool1d
        return pool(attention, self.kernel_size, stride=1, padding=self.kernel_size // 2)


@dataclass(frozen=True, kw_only=True)
class PyramidKV(SnapKV):
    """Compresses the prompt as snapkv does, with k falling from 1.8 k to 0.2 k over the layers."""

    name: ClassVar[str] = "pyramidkv"
    source: ClassVar[str] = "PyramidKV (Cai et al. 2024), Section 4"
    neighbours: ClassVar[str] = "snapkv with more for the first layers and less for the last."

    taper: float = 0.8
