"""Which columns of a call are tokens, known on the host without asking the device again in every layer."""

from __future__ import annotations

import torch

COUNTS = "_h2o_lab_counts"
"""Attribute of a mask that leads to the number of its tokens."""


def no_padding(batch: int, length: int, device: torch.device) -> torch.Tensor:
    """bool [B, T], all True, with its counts known."""
    return known(
        torch.ones(batch, length, dtype=torch.bool, device=device), torch.full((batch,), length, dtype=torch.int64)
    )


def known(valid: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The same mask, bool [B, T], with its counts, int64 [B] on the host; it must not change afterwards."""
    setattr(valid, COUNTS, tokens)
    return valid


def token_counts(valid: torch.Tensor) -> torch.Tensor:
    """int64 [B] on the host, tokens of each row of a mask, bool [B, T]."""
    tokens = getattr(valid, COUNTS, None)
    return valid.sum(dim=1).cpu() if tokens is None else tokens


def on_host(valid: torch.Tensor) -> torch.Tensor:
    """The mask on the host; a device is not waited for where it is known that there is no padding."""
    if bool((token_counts(valid) == valid.shape[1]).all()):
        return torch.ones(valid.shape, dtype=torch.bool)
    return valid.cpu()
