"""Whole models under the eviction attention: equality with plain attention, generation, padding, refusals."""

import pytest
import torch
from transformers import (
    Gemma2Config,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    Qwen2Config,
)
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from h2o_lab.attention import EvictionCache, eviction_attention
from h2o_lab.attention.hook import check_model, position_limit
from h2o_lab.errors import UserError
from h2o_lab.policies import H2O, Budget, Full, Local
from tests.support.invariants import EVICTING, EXECUTORS, POLICIES
from tests.support.models import REAL_MODELS, random_model

ONE_PASS = [name for name, (policy, _) in POLICIES.items() if not policy.two_passes]


def cache_for(model, name="h2o", k=16, **kwargs) -> EvictionCache:
    return EvictionCache(model.config.num_hidden_layers, POLICIES[name][0], k, **kwargs)


@torch.no_grad()
def logits(model, ids, cache, chunks=None, mask=None) -> torch.Tensor:
    """Logits [B, T, V] of ids fed in chunks."""
    outs, start = [], 0
    with eviction_attention(model):
        for length in chunks or [ids.shape[1]]:
            part = slice(start, start + length)
            start += length
            seen = mask[:, :start] if mask is not None else None
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, part] if mask is not None else None
            outs.append(model(ids[:, part], attention_mask=seen, position_ids=positions, cache=cache).logits)
    return torch.cat(outs, dim=1)


def ids_for(model, length=64, batch=1) -> torch.Tensor:
    g = torch.Generator().manual_seed(3)
    return torch.randint(3, model.config.vocab_size, (batch, length), generator=g)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", [name for name in ONE_PASS if name != "h2o_official_mask"])
def test_equals_plain_attention_when_nothing_is_evicted(tiny_model, name, executor):
    ids = ids_for(tiny_model)
    with torch.no_grad():
        expected = tiny_model(ids).logits
    out = logits(tiny_model, ids, cache_for(tiny_model, name, k=64, executor=executor))
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", [name for name in ONE_PASS if name in EVICTING])
def test_chunk_equals_steps_equals_reference(tiny_model, name):
    ids = ids_for(tiny_model)
    whole = logits(tiny_model, ids, cache_for(tiny_model, name))
    steps = logits(tiny_model, ids, cache_for(tiny_model, name, lengths=[64]), [1] * 64)
    reference = logits(tiny_model, ids, cache_for(tiny_model, name, executor="reference", lengths=[64]), [40, 24])
    torch.testing.assert_close(steps, whole, atol=1e-4, rtol=0)
    torch.testing.assert_close(reference, whole, atol=1e-4, rtol=0)


@pytest.mark.parametrize("model_name", REAL_MODELS)
def test_h2o_with_room_for_all_equals_full_attention_on_trained_models(real_model, book_tokens, model_name):
    model, _ = real_model(model_name)
    ids = book_tokens(model_name, 300)[None]
    with torch.no_grad():
        expected = model(ids).logits
    for executor in EXECUTORS:
        out = logits(model, ids, cache_for(model, "h2o", k=300, executor=executor))
        torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-5)


def test_policies_differ_in_the_paper_s_order_on_a_trained_model(real_model, book_tokens):
    """tiny-opt-books uses far keys: with 20 of 512 entries, heavy hitters and recents together lose least."""
    model, _ = real_model("tiny-opt-books")
    ids = book_tokens("tiny-opt-books", 8 * 512).view(8, 512)

    def loss(name: str) -> float:
        scored = logits(model, ids, cache_for(model, name, k=20)).log_softmax(-1)[:, 200:-1]
        return -scored.gather(2, ids[:, 201:, None]).mean().item()

    full, h2o, local, h2_only, random = (loss(x) for x in ("full", "h2o", "local", "h2_only", "random"))
    assert full < h2o < min(local, h2_only, random)


@pytest.mark.parametrize("prefill", ["evict", "full"])
@pytest.mark.parametrize("name", ["full", "local", "h2o", "streaming", "random"])
def test_generate_in_a_padded_batch_equals_each_prompt_alone(tiny_model, name, prefill):
    prompts = [ids_for(tiny_model, 30)[0], ids_for(tiny_model, 30)[0][11:]]
    width = 30
    ids = torch.full((2, width), 1)
    mask = torch.zeros(2, width, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = prompt
        mask[row, width - len(prompt) :] = 1
    settings = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 1, "eos_token_id": None}
    budget = Budget(fraction=0.4)
    with eviction_attention(tiny_model):
        cache = cache_for(tiny_model, name, budget, prefill=prefill)
        together = tiny_model.generate(ids, attention_mask=mask, cache=cache, **settings)[:, width:]
        for row, prompt in enumerate(prompts):
            alone = tiny_model.generate(
                prompt[None], cache=cache_for(tiny_model, name, budget, prefill=prefill), **settings
            )
            assert alone[0, len(prompt) :].tolist() == together[row].tolist()
    if name != "full":
        assert cache.states[0].caps.k.tolist() == [12, 7]
        assert cache.states[0].keys.shape[2] == 12
    assert cache.seen.tolist() == [30 + 11, 19 + 11]


def test_greedy_generation_with_full_cache_equals_transformers_own(tiny_model):
    ids = ids_for(tiny_model, 20)
    expected = tiny_model.generate(ids, max_new_tokens=15, do_sample=False, pad_token_id=1, eos_token_id=None)
    with eviction_attention(tiny_model):
        for name in ("full", "h2o"):
            cache = cache_for(tiny_model, name, 100)
            out = tiny_model.generate(
                ids, max_new_tokens=15, do_sample=False, pad_token_id=1, eos_token_id=None, cache=cache
            )
            assert out.tolist() == expected.tolist()


def test_sampling_is_reproducible(tiny_model):
    ids = ids_for(tiny_model, 20)
    outs = []
    for _ in range(2):
        torch.manual_seed(0)
        with eviction_attention(tiny_model):
            outs.append(tiny_model.generate(ids, max_new_tokens=10, do_sample=True, cache=cache_for(tiny_model)))
    assert torch.equal(*outs)


def test_beam_search_reorders_the_cache(tiny_model):
    """With room for everything, beam search must equal transformers' own."""
    ids = ids_for(tiny_model, 20)
    settings = {
        "max_new_tokens": 10,
        "num_beams": 3,
        "do_sample": False,
        "pad_token_id": 1,
        "eos_token_id": None,
    }
    expected = tiny_model.generate(ids, **settings)
    with eviction_attention(tiny_model):
        out = tiny_model.generate(ids, cache=cache_for(tiny_model, k=100), **settings)
        tight = tiny_model.generate(ids, cache=cache_for(tiny_model, k=8), **settings)
    assert out.tolist() == expected.tolist()
    assert tight.shape == expected.shape


@pytest.mark.parametrize("executor", EXECUTORS)
def test_positions_come_from_tokens_seen(executor):
    """After evictions the next token's position is the number of tokens seen, not of entries held."""
    model = random_model("opt")
    ids = ids_for(model, 50)
    cache = cache_for(model, "local", k=8, executor=executor)
    logits(model, ids[:, :49], cache)
    given = torch.tensor([[49]])
    with torch.no_grad(), eviction_attention(model):
        implied = model(ids[:, 49:], cache=cache.fork()).logits
        explicit = model(ids[:, 49:], cache=cache, position_ids=given).logits
    assert torch.equal(implied, explicit)
    assert cache.get_seq_length() == 50
    assert cache.states[0].positions.max() == 49


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models(tiny_model, dtype):
    model = tiny_model.to(dtype)
    ids = ids_for(model)
    with torch.no_grad():
        expected = model(ids).logits.float().softmax(-1)
    cache = cache_for(model, k=64)
    out = logits(model, ids, cache).float().softmax(-1)
    assert cache.states[0].keys.dtype == dtype
    assert (out - expected).abs().max() < 0.1
    assert torch.isfinite(logits(model, ids, cache_for(model, k=8))).all()


def test_kv_bytes_are_exact(tiny_model):
    config = tiny_model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_size = config.hidden_size // config.num_attention_heads
    cache = cache_for(tiny_model, k=16)
    logits(tiny_model, ids_for(tiny_model, 64, batch=2), cache)
    per_sequence = config.num_hidden_layers * heads * 16 * head_size * 2 * 4
    assert cache.kv_bytes_resident.tolist() == [per_sequence, per_sequence]
    assert cache.kv_bytes_reserved == 2 * per_sequence
    storages = [t.untyped_storage().nbytes() for state in cache.states for t in (state.keys, state.values)]
    assert sum(storages) == 2 * per_sequence


def test_everything_is_taken_off_again(tiny_model):
    before = tiny_model.config._attn_implementation
    with pytest.raises(UserError, match="EvictionCache"), torch.no_grad(), eviction_attention(tiny_model):
        tiny_model(ids_for(tiny_model), use_cache=False)
    with eviction_attention(tiny_model):
        assert "h2o_lab" in ALL_ATTENTION_FUNCTIONS.valid_keys()
    assert tiny_model.config._attn_implementation == before
    assert "h2o_lab" not in ALL_ATTENTION_FUNCTIONS.valid_keys()
    assert "h2o_lab" not in ALL_MASK_ATTENTION_FUNCTIONS.valid_keys()


def test_a_text_longer_than_the_position_table_is_refused():
    model = random_model("opt")
    with pytest.raises(UserError, match="257 tokens.*position table has 256"):
        logits(model, ids_for(model, 257), cache_for(model))
    cache = cache_for(model)
    logits(model, ids_for(model, 250), cache)
    with pytest.raises(UserError, match="position table"):
        logits(model, ids_for(model, 7), cache)


def test_refusals(tiny_model):
    ids = ids_for(tiny_model)
    with eviction_attention(tiny_model):
        with torch.no_grad(), pytest.raises(UserError, match="EvictionCache"):
            tiny_model(ids, use_cache=False)
        with pytest.raises(UserError, match="inference only"):
            tiny_model(ids, cache=cache_for(tiny_model))
    with pytest.raises(UserError, match="prefill=half"):
        cache_for(tiny_model, prefill="half")
    with pytest.raises(UserError, match="needs a budget"):
        EvictionCache(3, H2O(), None)
    with pytest.raises(UserError, match="2 budgets were given for a batch of 1"):
        logits(tiny_model, ids, EvictionCache(3, Local(), [4, 5]))
    with pytest.raises(UserError, match="cropped"):
        EvictionCache(3, Full(), None).crop(-1)


def test_models_that_do_not_attend_in_full_are_refused():
    for config in (MistralConfig(sliding_window=128), Gemma2Config()):
        with pytest.raises(UserError, match="sliding"):
            check_model(config)
    for config in (LlamaConfig(), OPTConfig(), Qwen2Config(), MistralConfig(sliding_window=None)):
        check_model(config)
    assert position_limit(OPTConfig(max_position_embeddings=77)) == 77
    assert position_limit(LlamaConfig()) is None


def test_a_cache_used_outside_the_context_is_an_error_not_garbage(tiny_model):
    cache = cache_for(tiny_model, "full")
    tiny_model(ids_for(tiny_model), cache=cache)
    with pytest.raises(UserError, match="did not attend through its EvictionCache"):
        tiny_model(ids_for(tiny_model, 1), cache=cache)


def test_models_whose_attention_cannot_be_replaced_are_refused():
    model = GPTNeoForCausalLM(
        GPTNeoConfig(vocab_size=97, hidden_size=32, num_layers=2, num_heads=2, attention_types=[[["global"], 2]])
    )
    with pytest.raises(UserError, match="does not let its attention be replaced"), eviction_attention(model):
        pass


@pytest.mark.parametrize("executor", EXECUTORS)
def test_memory_follows_the_text_where_the_cap_is_far_beyond_it(tiny_model, executor):
    cache = cache_for(tiny_model, k=10**9, executor=executor)
    logits(tiny_model, ids_for(tiny_model, 40), cache, [30, 10])
    assert cache.kv_bytes_reserved == cache.kv_bytes_resident.item()


@pytest.mark.parametrize("k", [1, 0, -3])
def test_caps_below_two_are_refused(tiny_model, k):
    with pytest.raises(UserError, match="k must be 2 or more"):
        logits(tiny_model, ids_for(tiny_model), cache_for(tiny_model, k=k))


def test_the_peak_of_a_full_prefill_includes_the_prompt(tiny_model):
    caches = [cache_for(tiny_model, k=8, prefill=prefill) for prefill in ("evict", "full")]
    for cache in caches:
        logits(tiny_model, ids_for(tiny_model, 64), cache)
    evict, full = caches
    assert evict.kv_bytes_peak == evict.kv_bytes_reserved == full.kv_bytes_reserved
    assert full.kv_bytes_peak == full.kv_bytes_reserved + full.kv_bytes_reserved // 3 * 64 // 8
