"""Sums that grow with the number of texts in nothing but their values."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray


class Running:
    """Mean and standard error of tensors of one shape, over texts."""

    def __init__(self) -> None:
        self.count = 0
        self._mean: torch.Tensor | None = None
        self._squares: torch.Tensor | None = None

    def add(self, value: torch.Tensor) -> None:
        """Take one text in (Welford 1962)."""
        value = value.double().cpu()
        if self._mean is None or self._squares is None:
            self._mean, self._squares = torch.zeros_like(value), torch.zeros_like(value)
        self.count += 1
        step = value - self._mean
        self._mean += step / self.count
        self._squares += step * (value - self._mean)

    @property
    def mean(self) -> NDArray[np.float64]:
        assert self._mean is not None
        return self._mean.numpy()

    @property
    def stderr(self) -> NDArray[np.float64]:
        """NaN with fewer than two texts."""
        assert self._squares is not None
        if self.count < 2:
            return np.full(self._squares.shape, np.nan)
        return (self._squares / (self.count - 1) / self.count).sqrt().numpy()


class Reservoir:
    """A uniform sample of the values seen so far, one for each of several streams; the seed decides which."""

    def __init__(self, streams: int, size: int, seed: int = 0) -> None:
        self.size = size
        self._draw = np.random.default_rng(seed)
        self._values = np.empty((streams, 0), np.float32)
        self._keys = np.empty((streams, 0))

    def add(self, values: NDArray[np.float32]) -> None:
        """Take in new values [streams, n]: each has a random number, and those with the smallest stay."""
        keys = np.concatenate([self._keys, self._draw.random(values.shape)], axis=1)
        everything = np.concatenate([self._values, values], axis=1)
        kept = np.argsort(keys, axis=1, kind="stable")[:, : self.size]
        self._keys = np.take_along_axis(keys, kept, axis=1)
        self._values = np.take_along_axis(everything, kept, axis=1)

    @property
    def values(self) -> NDArray[np.float32]:
        """[streams, at most `size`]."""
        return self._values
