"""The memory that a model and its cache have to fit into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from h2o_lab.models.placement import parse_device

if TYPE_CHECKING:
    from h2o_lab.config import ModelConfig


@dataclass(frozen=True)
class Memory:
    """Of a device, in bytes.

    Attributes:
        place: `RAM`, `GPU`, or `2 GPUs`.
        free: what can be taken now.
        total: all of it.
    """

    place: str
    free: int
    total: int


def memory_of(cfg: ModelConfig) -> Memory:
    """Of the device that a model is put on; where `device_map` places it, of all GPUs together, else RAM.

    Raises:
        UserError: the device is unknown or absent.
    """
    import psutil
    import torch

    device = parse_device(cfg)
    gpus = range(torch.cuda.device_count()) if device is None else []
    if device is not None and device.type == "cuda":
        gpus = [device.index or 0]
    if not gpus:
        memory = psutil.virtual_memory()
        return Memory("RAM", memory.available, memory.total)
    sizes = [torch.cuda.mem_get_info(gpu) for gpu in gpus]
    place = "GPU" if len(sizes) == 1 else f"{len(sizes)} GPUs"
    return Memory(place, sum(free for free, _ in sizes), sum(total for _, total in sizes))
