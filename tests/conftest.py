"""Fixtures: small random models of each family, and the real ones that may lie beside the checkout."""

import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# one worker a core, each with one thread for tensors; waiting threads must not spin beside other workers
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("NUMBA_NUM_THREADS", "2")
# Triton's kernels are interpreted; TRITON_INTERPRET=0 runs their tests on a GPU
os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)

SHARED = Path(__file__).resolve().parents[2] / "shared"
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


@pytest.fixture(params=FAMILIES)
def tiny_model(request):
    return random_model(request.param)


@pytest.fixture(scope="session")
def real_model():
    """Loads one of `REAL_MODELS` with its tokenizer, in float32, once per session."""
    loaded = {}

    def load(name: str):
        if name not in loaded:
            folder = shared("models", name)
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
            loaded[name] = (model, AutoTokenizer.from_pretrained(folder))
        return loaded[name]

    return load


@pytest.fixture(scope="session")
def book_tokens(real_model):
    """int64 [N], the opening of a book in the tokens of a real model."""
    import json

    def tokens(name: str, count: int) -> torch.Tensor:
        with shared("data", "books", "books.jsonl").open() as lines:
            text = json.loads(next(lines))["text"][20_000 : 20_000 + 12 * count]
        return real_model(name)[1](text, return_tensors="pt").input_ids[0, :count]

    return tokens
