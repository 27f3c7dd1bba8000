"""Rotation by virtual positions (`positions: rolling`), with the frequencies of the model's own rotary module."""

from __future__ import annotations

import sys
from typing import cast

import torch

from h2o_lab.errors import UserError

CHANGING = ("dynamic", "longrope")
"""Scalings whose frequencies depend on the length of the text."""
ROWS = 256


class Rotary:
    """Rotates keys and queries by whole positions, in float32.

    The model is given position ids of zero, so that its keys and queries arrive unrotated (but scaled, where its
    rotary embedding scales), and the angle of an entry follows its rank in the cache: angles stay small at any
    stream length. Works for full and partial rotary embeddings that rotate the first dimensions by halves, with
    any scaling that the model's own module computes.

    Args:
        model: a transformers model.

    Raises:
        UserError: the model has no rotary module, or one that rotates in another way.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        modules = [module for module in model.modules() if hasattr(module, "inv_freq")]
        if len(modules) != 1:
            raise UserError(
                f"positions=rolling needs one rotary module for the whole model, and {type(model).__name__} has "
                f"{len(modules)}: use positions=original."
            )
        self.module = modules[0]
        self.device = cast(torch.Tensor, self.module.inv_freq).device
        self.changing = getattr(self.module, "rope_type", "default") in CHANGING
        self._frequencies: torch.Tensor | None = None
        self._tables: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}
        self._check_convention(model)

    def tables(self, size: int, span: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of virtual positions.

        Args:
            size: positions wanted, from 0.
            span: entries in the longest cache of the batch; some scalings choose their frequencies by it.
            device: where the tables are used.

        Returns:
            Two float32 [N, R / 2] with N >= size, R being the rotated dimensions.
        """
        if self._frequencies is None or self.changing:
            frequencies = self._frequencies_at(span)
            if self._frequencies is None or not torch.equal(frequencies, self._frequencies):
                self._frequencies, self._tables = frequencies, {}
        have = self._tables.get(device)
        if have is None or len(have[0]) < size:
            rows = torch.arange(-(-size // ROWS) * ROWS, device=self.device)
            angles = rows[:, None].float() * self._frequencies
            have = (angles.cos().to(device), angles.sin().to(device))
            self._tables[device] = have
        return have

    def rotate(self, x: torch.Tensor, places: torch.Tensor, span: int) -> torch.Tensor:
        """Rotate by virtual positions.

        Args:
            x: [..., D].
            places: int64, broadcastable to x without its last dimension.
            span: see `tables`.

        Returns:
            float32 [..., D].
        """
        cos, sin = (table[places] for table in self.tables(int(places.max()) + 1, span, x.device))
        half = cos.shape[-1]
        x = x.float()
        a, b = x[..., :half], x[..., half : 2 * half]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], dim=-1)

    def steady(self, before: int, after: int) -> bool:
        """Whether frequencies stay the same while the longest cache of a batch grows by so many entries."""
        if not self.changing:
            return True
        return torch.equal(self._frequencies_at(max(before, 1)), self._frequencies_at(max(after, 1)))

    def _frequencies_at(self, span: int) -> torch.Tensor:
        # forward, not the module itself: in a context, its hook sets positions to zero
        for last in (0, span - 1):  # some modules forget a longer text only where they meet a short one
            self.module.forward(torch.zeros(1, device=self.device), torch.tensor([[0, last]], device=self.device))
        return cast(torch.Tensor, self.module.inv_freq).float().clone()

    def _check_convention(self, model: torch.nn.Module) -> None:
        """Compare with the function by which the model itself rotates."""
        own = getattr(sys.modules[type(model).__module__], "apply_rotary_pos_emb", None)
        device = self.device
        positions = torch.arange(5, device=device)
        try:
            cos, sin = self.module.forward(torch.zeros(1, dtype=torch.float32, device=device), positions[None])
            x = torch.linspace(-1, 1, 5 * cos.shape[-1], device=device).view(1, 1, 5, -1).sin()
            theirs = own(x, x, cos, sin)[0] / cos[0, 0, 0]  # type: ignore[misc]
            same = torch.allclose(theirs, self.rotate(x, positions, 5), atol=1e-5)
        except (AttributeError, TypeError, RuntimeError):
            same = False
        if not same:
            raise UserError(
                f"positions=rolling rotates the first dimensions by halves, as LLaMA and GPT-NeoX do, and "
                f"{type(model).__name__} rotates in another way: use positions=original."
            )
