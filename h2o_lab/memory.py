"""What a model and its KV cache take, from the model's configuration alone: no weights are read.

Every size is in bytes; a gigabyte of the paper is 10^9 of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from h2o_lab.errors import UserError

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig


def kv_bytes(
    config: PretrainedConfig, k: int | Sequence[int], batch: int = 1, dtype: str | torch.dtype = "auto"
) -> int:
    """Bytes of the keys and values of `batch` sequences that hold k entries in every KV head.

    Layers x KV heads x k x (size of a key + size of a value) x bytes of a number x batch. OPT-30B (48 layers, 56
    heads of 128) at half precision takes 180 GB for 128 sequences of 1024 tokens (paper, Section 1).

    Args:
        config: of the model.
        k: entries of each KV head: one number for all layers, or one per layer.
        batch: number of sequences.
        dtype: of keys and values, as in `model.dtype`; `auto` for the one that the configuration names.

    Raises:
        UserError: there are not as many numbers in `k` as layers, one is negative, or the model caches something
            else than keys and values.
    """
    layers = config.get_text_config(decoder=True).num_hidden_layers
    entries = [k] * layers if isinstance(k, int) else list(k)
    if len(entries) != layers or min(entries) < 0 or batch < 0:
        raise UserError(
            f"k={k} for a batch of {batch} is no KV cache of {layers} layers: k must be a number of entries, or "
            "one per layer, and nothing may be negative."
        )
    return sum(entries) * _entry_numbers(config) * number_bytes(config, dtype) * batch


def largest_batch(
    config: PretrainedConfig, k: int | Sequence[int], memory_bytes: int, dtype: str | torch.dtype = "auto"
) -> int:
    """How many sequences of k entries fit into `memory_bytes`: what is left of a device beside the weights.

    Args:
        config, k, dtype: as in `kv_bytes`.
        memory_bytes: for keys and values alone; below the bytes of one sequence no batch fits, and 0 is returned.

    Raises:
        UserError: as `kv_bytes`, or k is 0.
    """
    one = kv_bytes(config, k, 1, dtype)
    if one == 0:
        raise UserError(f"k={k} holds nothing, so that any batch would fit: k must be 1 or more.")
    return max(0, memory_bytes) // one


def weight_bytes(
    config: PretrainedConfig, dtype: str | torch.dtype = "auto", trust_remote_code: bool = False
) -> int:
    """Bytes of all weights, shared ones counted once; the model is built without memory (a second or two).

    Raises:
        UserError: transformers cannot build a causal language model of this configuration.
    """
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    except (ValueError, TypeError, ImportError, NotImplementedError) as error:
        reason = " ".join(str(error).split(". ")[0].split())
        raise UserError(f"the weights of a {config.model_type} cannot be counted ({reason}).") from error
    return sum(weight.numel() for weight in model.parameters()) * number_bytes(config, dtype)


def number_bytes(config: PretrainedConfig, dtype: str | torch.dtype = "auto") -> int:
    """Bytes of one number of this format; of `auto`, the one of the configuration, or of float32 if it has none."""
    import torch

    if dtype == "auto":
        named = getattr(config, "dtype", None) or getattr(config.get_text_config(decoder=True), "dtype", None)
        dtype = named or torch.float32
    return (getattr(torch, dtype) if isinstance(dtype, str) else dtype).itemsize


def _entry_numbers(config: PretrainedConfig) -> int:
    """Numbers of the key and value of one token in all KV heads of one layer."""
    text = config.get_text_config(decoder=True)
    if getattr(text, "kv_lora_rank", None):
        raise UserError(
            f"{config.model_type} caches a latent in place of keys and values: its memory cannot be told from its "
            "heads."
        )
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    if getattr(text, "multi_query", False):
        heads = 1
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return heads * 2 * size
