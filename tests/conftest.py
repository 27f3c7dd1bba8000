"""Fixtures: small random models of each family, and the real ones that may lie beside the checkout."""

import os

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
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.models import FAMILIES, random_model, shared


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
