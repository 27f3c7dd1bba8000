"""Small random models of each family and their tokenizer, and the real ones that may lie beside the checkout."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
)

SHARED = Path(__file__).resolve().parents[3] / "shared"
REAL_MODELS = ("stories260K", "tiny-opt-books", "tiny-neox-books")
FAMILIES = ("llama", "opt", "gpt_neox")


def shared(*parts: str) -> Path:
    """A path beside the checkout; the test is skipped where it is missing."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{'/'.join(parts)} is not beside the checkout")
    return path


def random_model(family: str) -> torch.nn.Module:
    """A small randomly initialised model, weights scaled up so that attention is far from uniform."""
    torch.manual_seed(0)
    size = {"vocab_size": 97, "hidden_size": 48, "num_hidden_layers": 3, "max_position_embeddings": 256}
    heads = {"num_attention_heads": 6}
    if family == "llama":
        model = LlamaForCausalLM(LlamaConfig(**size, **heads, num_key_value_heads=2, intermediate_size=64))
    elif family == "opt":
        model = OPTForCausalLM(OPTConfig(**size, **heads, ffn_dim=64, word_embed_proj_dim=48, dropout=0.0))
    else:
        model = GPTNeoXForCausalLM(GPTNeoXConfig(**size, **heads, intermediate_size=64))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "embed" not in name:
                weight.mul_(8)
    return model.eval()


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token per printable ASCII character: the 97 entries of the random models."""
    characters = ["<end>", *pre_tokenizers.ByteLevel().pre_tokenize_str(" \n")[0][0], *map(chr, range(33, 127))]
    tokenizer = Tokenizer(models.BPE({character: i for i, character in enumerate(characters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
