"""Number formats and devices, as the configuration names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from h2o_lab.config import ModelConfig
from h2o_lab.errors import UserError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

DTYPES = ("float32", "bfloat16", "float16", "auto")
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")


def parse_dtype(name: str) -> torch.dtype | str:
    """The number format of the weights, or "auto".

    Raises:
        UserError: `name` is none of `DTYPES`.
    """
    import torch

    if name not in DTYPES:
        raise UserError(f"model.dtype={name} is unknown: allowed are {', '.join(DTYPES)}.")
    return name if name == "auto" else getattr(torch, name)


def parse_device(cfg: ModelConfig) -> torch.device | None:
    """The device that the whole model is put on, or None where `device_map` places it.

    Raises:
        UserError: an unknown or absent device, an unknown `device_map`, or both keys at once.
    """
    if cfg.device_map is None:
        if cfg.max_memory is not None:
            raise UserError("model.max_memory is for a model that is split: set model.device_map=auto too.")
        return _device(cfg.device)
    if cfg.device_map not in DEVICE_MAPS:
        raise UserError(
            f"model.device_map={cfg.device_map} is unknown: allowed are {', '.join(DEVICE_MAPS)} and null."
        )
    if cfg.device != "auto":
        raise UserError(
            f"model.device={cfg.device} and model.device_map={cfg.device_map} exclude each other: use "
            "model.device=auto or model.device_map=null."
        )
    return None


def most_memory(cfg: ModelConfig) -> dict[int | str, str] | None:
    """`max_memory` with the numbers of GPUs as numbers, as accelerate wants it."""
    if cfg.max_memory is None:
        return None
    return {int(name) if str(name).isdigit() else str(name): size for name, size in cfg.max_memory.items()}


def input_device(model: PreTrainedModel) -> torch.device:
    """Where a model's inputs go: a part that is kept on the disk has no device of its own."""
    import torch

    return torch.device("cpu") if model.device.type == "meta" else model.device


def _device(name: str) -> torch.device:
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in {"cpu", "cuda", "mps"}:
        raise UserError(f"model.device={name} is unknown: allowed are auto, cpu, cuda, cuda:N and mps.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"model.device={name} is not there (CUDA devices found: {torch.cuda.device_count()}): use "
            "model.device=auto or model.device=cpu."
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("model.device=mps is not there: use model.device=auto or model.device=cpu.")
    return device
