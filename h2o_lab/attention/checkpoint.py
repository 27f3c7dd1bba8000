"""A cache on disk, so that a stream that was interrupted goes on where it stood."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from h2o_lab.attention.cache import EvictionCache
from h2o_lab.attention.caps import Caps
from h2o_lab.attention.state import LayerState
from h2o_lab.errors import UserError
from h2o_lab.policies import Policy, SparsePolicy

PER_ENTRY = ("keys", "values", "positions", "scores", "static", "evicted_at")


def can_store(policy: Policy) -> bool:
    """Whether a checkpoint holds all that a policy needs to go on: those that mask or look ahead keep more."""
    return policy.causal and not isinstance(policy, SparsePolicy)


def save_cache(cache: EvictionCache, file: Path, extra: dict[str, torch.Tensor], about: str) -> None:
    """Write a cache and what belongs to it; the file appears whole, in place of an older one.

    Args:
        cache: after a call of the model; its policy must evict by itself.
        file: where to.
        extra: further tensors to keep.
        about: what the stream is; `load_cache` refuses a file that says something else.

    Raises:
        UserError: the policy keeps more than a checkpoint holds, or the file cannot be written.
    """
    if not can_store(cache.policy):
        raise UserError(f"policy {cache.policy.name} cannot be stored: only policies that evict by themselves can.")
    tensors = {f"extra.{name}": tensor.contiguous() for name, tensor in extra.items()}
    for layer in cache.evicting:
        state = layer.state
        assert state is not None
        start = f"layers.{layer.index}."
        kept = {name: getattr(state, name) for name in PER_ENTRY} | {"seen": state.seen}
        kept |= {f"caps.{field.name}": getattr(state.caps, field.name) for field in fields(Caps)}
        tensors |= {start + name: tensor.contiguous() for name, tensor in kept.items() if tensor is not None}
        tensors[start + "fed"] = torch.tensor([layer.length, layer.rolling, layer.prompt_bytes])
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, temporary, metadata={"about": about})
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(file)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"cannot write the checkpoint {file}: {error}.") from error


def load_cache(cache: EvictionCache, file: Path, about: str) -> dict[str, torch.Tensor]:
    """Fill an empty cache, of the same model and policy, from `save_cache`'s file; returns the further tensors.

    The tensors are on the CPU; each layer moves its own to its device when it attends.

    Raises:
        UserError: the file cannot be read, or is of another stream.
    """
    try:
        with safe_open(file, framework="pt") as stored:
            if (stored.metadata() or {}).get("about") != about:
                raise UserError(f"the checkpoint {file} is of another stream: delete it, or name another file.")
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError) as error:
        raise UserError(f"the checkpoint {file} cannot be read: delete it to start anew.") from error
    for layer in cache.evicting:
        start = f"layers.{layer.index}."
        mine = {name.removeprefix(start): x for name, x in tensors.items() if name.startswith(start)}
        length, rolling, prompt_bytes = mine.pop("fed").tolist()
        caps = Caps(**{field.name: mine.pop(f"caps.{field.name}") for field in fields(Caps)})
        state = {name: mine.get(name) for name in PER_ENTRY}
        layer.state = LayerState(**state, seen=mine["seen"], caps=caps, policy=cache.policy)  # type: ignore[arg-type]
        layer.length, layer.rolling, layer.prompt_bytes = length, bool(rolling), prompt_bytes
        layer.is_initialized = True
    return {name.removeprefix("extra."): x for name, x in tensors.items() if name.startswith("extra.")}
