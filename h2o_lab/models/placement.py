"""Number formats and devices, as the configuration names them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from h2o_lab.config import ModelConfig
from h2o_lab.errors import UserError
from h2o_lab.parallel import size

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

DTYPES = ("float32", "bfloat16", "float16", "auto")
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
TP_PLANS = ("auto",)


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
    """The device that the whole model is put on, or None where `device_map` or `tp_plan` places it.

    Raises:
        UserError: an unknown or absent device, an unknown `device_map` or `tp_plan`, two of these keys at once, or
            a `tp_plan` in a process that torchrun has not started.
    """
    if cfg.tp_plan is not None:
        _check_tp_plan(cfg)
    if cfg.device_map is None:
        if cfg.max_memory:
            raise UserError("model.max_memory is for a model that is split: set model.device_map=auto too.")
        return _device(cfg.device) if cfg.tp_plan is None else None
    for name, most in (cfg.max_memory or {}).items():
        if not re.fullmatch(r"\d+(\.\d+)?[KMGT]i?B", str(most)):
            raise UserError(f"model.max_memory of {name} is {most}: it must be a size such as 40GiB or 500MB.")
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


def _check_tp_plan(cfg: ModelConfig) -> None:
    if cfg.tp_plan not in TP_PLANS:
        raise UserError(f"model.tp_plan={cfg.tp_plan} is unknown: allowed are {', '.join(TP_PLANS)} and null.")
    for key, value, nothing in (("device", cfg.device, "auto"), ("device_map", cfg.device_map, None)):
        if value != nothing:
            raise UserError(
                f"model.{key}={value} and model.tp_plan={cfg.tp_plan} exclude each other: use "
                f"model.{key}={nothing or 'null'} or model.tp_plan=null."
            )
    if size() == 1:
        raise UserError(
            f"model.tp_plan={cfg.tp_plan} splits a model over several processes, and this is one: start "
            "torchrun --standalone --nproc-per-node N -m h2o_lab.run, or use model.device_map=auto."
        )


def placement(cfg: ModelConfig) -> str:
    """What of a placement can show in the last digits of a result: kind of device, and processes that sum up."""
    device = parse_device(cfg)
    if cfg.tp_plan is not None:
        return f"{_device('auto')}, {size()} processes"
    return cfg.device_map or str(device)


def in_one_process(cfg: ModelConfig) -> None:
    """Let `device_map` place what `tp_plan` would split, for commands that are one process; changes `cfg`."""
    if cfg.tp_plan is not None:
        cfg.tp_plan, cfg.device_map = None, "auto"


def most_memory(cfg: ModelConfig) -> dict[int | str, str] | None:
    """`max_memory` with the numbers of GPUs as numbers, as accelerate wants it."""
    if not cfg.max_memory:
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
