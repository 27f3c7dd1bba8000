"""What a KV cache and weights take: against real caches and models, and the paper's own numbers."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    GemmaConfig,
    GPT2Config,
    GPTBigCodeConfig,
    OPTConfig,
    Qwen3Config,
)

from h2o_lab.attention import EvictionCache, eviction_attention
from h2o_lab.errors import UserError
from h2o_lab.memory import kv_bytes, largest_batch, number_bytes, weight_bytes
from h2o_lab.policies import H2O, Full
from tests.support.models import FAMILIES, random_model

OPT_30B = OPTConfig(
    num_hidden_layers=48,
    num_attention_heads=56,
    hidden_size=7168,
    ffn_dim=28672,
    word_embed_proj_dim=7168,
    vocab_size=50272,
)
SIZE = {"vocab_size": 97, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6}
OTHERS = {
    "heads of a size of their own": Qwen3Config(
        **SIZE, num_key_value_heads=2, head_dim=16, intermediate_size=64, dtype="bfloat16"
    ),
    "shared input and output embeddings": GemmaConfig(
        **SIZE, num_key_value_heads=2, head_dim=16, intermediate_size=64
    ),
    "other names": GPT2Config(vocab_size=97, n_embd=48, n_layer=3, n_head=6),
    "one head for all": GPTBigCodeConfig(vocab_size=97, n_embd=48, n_layer=3, n_head=6),
}


def cached_bytes(model, policy, k, batch, length) -> int:
    """What a real cache holds after a text."""
    ids = torch.randint(0, 97, (batch, length), generator=torch.Generator().manual_seed(0))
    cache = EvictionCache(model.config.num_hidden_layers, policy, k)
    with torch.no_grad(), eviction_attention(model):
        model(ids, cache=cache)
    return int(cache.kv_bytes_resident.sum())


def test_the_paper_s_example_takes_180_gb():
    assert kv_bytes(OPT_30B, 1024, batch=128, dtype="float16") == 180_388_626_432
    assert kv_bytes(OPT_30B, 1024, batch=128, dtype=torch.bfloat16) == 180_388_626_432


def test_weights_of_opt_30b_take_60_gb():
    assert weight_bytes(OPT_30B, "float16") / 1e9 == pytest.approx(60, rel=0.01)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("policy", "k", "held"), [(Full(), None, 20), (H2O(), 8, 8), (H2O(), 50, 20)])
def test_predicted_bytes_are_those_that_a_cache_holds(family, policy, k, held):
    model = random_model(family)
    assert kv_bytes(model.config, held, 2, "float32") == cached_bytes(model, policy, k, 2, 20)


@pytest.mark.parametrize("case", OTHERS)
def test_other_shapes_of_models_are_understood(case):
    model = AutoModelForCausalLM.from_config(OTHERS[case]).eval()
    assert kv_bytes(model.config, 8, 2) == cached_bytes(model, H2O(), 8, 2, 20)
    assert weight_bytes(model.config) == sum(weight.nbytes for weight in model.parameters())


def test_layers_may_hold_different_numbers_of_entries():
    config = random_model("llama").config
    assert kv_bytes(config, [2, 3, 7], dtype="float32") == kv_bytes(config, 4, dtype="float32")
    with pytest.raises(UserError, match=r"k=\[2, 3\] for a batch of 1 is no KV cache of 3 layers"):
        kv_bytes(config, [2, 3])
    with pytest.raises(UserError, match="nothing may be negative"):
        kv_bytes(config, -1)


@pytest.mark.parametrize("k", [200, 1024])
def test_the_largest_batch_fits_and_one_more_does_not(k):
    memory = 80 * 10**9
    batch = largest_batch(OPT_30B, k, memory, "float16")
    assert kv_bytes(OPT_30B, k, batch, "float16") <= memory < kv_bytes(OPT_30B, k, batch + 1, "float16")
    assert largest_batch(OPT_30B, k, 10**6) == largest_batch(OPT_30B, k, -1) == 0


def test_any_batch_of_nothing_is_refused():
    with pytest.raises(UserError, match="k must be 1 or more"):
        largest_batch(OPT_30B, 0, 10**9)


def test_auto_is_the_format_of_the_configuration():
    assert number_bytes(Qwen3Config(dtype="bfloat16")) == 2
    assert number_bytes(Qwen3Config(dtype=torch.float32)) == number_bytes(Qwen3Config()) == 4
    assert number_bytes(Qwen3Config(dtype="float32"), "float16") == 2


def test_a_model_that_caches_something_else_is_refused():
    with pytest.raises(UserError, match="deepseek_v3 caches a latent"):
        kv_bytes(DeepseekV3Config(), 8)
