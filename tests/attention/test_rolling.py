"""Virtual positions: against the oracle, against plain attention, at any chunking, and their refusals."""

import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

from h2o_lab.attention import EvictionCache, eviction_attention
from h2o_lab.attention.rotary import Rotary
from h2o_lab.errors import UserError
from h2o_lab.policies import H2O, Full, TopK
from tests.support.invariants import EVICTING, EXECUTORS, POLICIES, Tokens, expected, feed, fresh, kept
from tests.support.models import random_model

CAP = 14
ONE_PASS = [name for name in EVICTING if not POLICIES[name][0].two_passes]


def llama(**rope) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=256,
        rope_parameters={"rope_theta": 10000.0} | rope,
    )
    return LlamaForCausalLM(config).eval()


SCALINGS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [2.0, 2.1, 2.2, 2.3],
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


@pytest.fixture(scope="module")
def rotary() -> Rotary:
    """Of a head of 8 dimensions, all rotated."""
    return Rotary(random_model("llama"))


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", ONE_PASS)
@pytest.mark.parametrize("chunks", [[60], [1] * 60, [17, 1, 42]], ids=["chunk", "steps", "mixed"])
def test_equals_the_oracle(rotary, name, executor, chunks):
    tokens = Tokens.draw()
    state = fresh(POLICIES[name][0], tokens, CAP, rotary=rotary)
    out = feed(state, tokens, executor, chunks).view(2, 2, 3, 60, 8).double()
    angles = rotary.module.inv_freq.double().numpy()
    for b in range(2):
        right, history, _ = expected(name, tokens, b, CAP, angles)
        torch.testing.assert_close(out[b], right, atol=1e-5, rtol=0)
        assert [kept(state, b, h) for h in range(2)] == [history[h][-1] for h in range(2)]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_padding_and_other_caps_in_the_batch_change_nothing(rotary, executor):
    policy, tokens = H2O(), Tokens.draw()
    padded = tokens.padded([7, 0], [2, 9])
    wide = fresh(policy, tokens, [CAP, 9], rotary=rotary)
    out = feed(wide, padded, executor, [20, 49])
    for b, (first, cap) in enumerate([(7, CAP), (0, 9)]):
        row = tokens.rows(slice(b, b + 1))
        alone = feed(fresh(policy, row, cap, rotary=rotary), row, executor)
        torch.testing.assert_close(out[b : b + 1, :, first : first + 60], alone, atol=1e-5, rtol=0)


@torch.no_grad()
def rolled(model, ids, cache, chunks=None) -> torch.Tensor:
    outs, start = [], 0
    with eviction_attention(model, "rolling"):
        for length in chunks or [ids.shape[1]]:
            outs.append(model(ids[:, start : start + length], cache=cache).logits)
            start += length
    return torch.cat(outs, dim=1)


def ids_for(length: int) -> torch.Tensor:
    return torch.randint(3, 97, (2, length), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
@pytest.mark.parametrize("kind", [*SCALINGS, "gpt_neox", "partial"])
@pytest.mark.parametrize("policy", [Full(), H2O()], ids=["full", "h2o"])
def test_nothing_evicted_equals_the_model_itself(kind, policy):
    """Only relative rotation matters, so rolling is the model's own attention until the first eviction."""
    if kind == "gpt_neox":
        model = random_model(kind)
    elif kind == "partial":
        torch.manual_seed(0)
        size = {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 64}
        model = GPTNeoXForCausalLM(
            GPTNeoXConfig(
                **size,
                num_attention_heads=2,
                max_position_embeddings=256,
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
            )
        ).eval()
    else:
        model = llama(**SCALINGS[kind])
    ids = ids_for(60)
    plain = model(ids).logits
    cache = EvictionCache(model.config.num_hidden_layers, policy, 60)
    torch.testing.assert_close(rolled(model, ids, cache, [25, 1, 34]), plain, atol=2e-4, rtol=0)
    torch.testing.assert_close(model(ids).logits, plain, atol=1e-6, rtol=0)  # the model is as it was


@torch.no_grad()
def test_executors_and_chunks_agree_beyond_the_trained_context():
    model, ids = random_model("llama"), ids_for(400)
    whole = rolled(model, ids, EvictionCache(3, H2O(), 20))
    parts = rolled(model, ids, EvictionCache(3, H2O(), 20), [1, 99, 300])
    plain = rolled(model, ids, EvictionCache(3, H2O(), 20, executor="reference"), [100] * 4)
    torch.testing.assert_close(parts, whole, atol=1e-3, rtol=0)
    torch.testing.assert_close(plain, whole, atol=1e-3, rtol=0)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
@pytest.mark.parametrize("caps", [[100, 9], [16, 300]])
@pytest.mark.parametrize("chunks", [[150], [30, 20, 100], [1] * 150], ids=["chunk", "chunks", "steps"])
def test_frequencies_follow_the_entries_held_token_by_token(kind, caps, chunks):
    """Beyond 64 entries (longrope), or 256 (dynamic, here 32), frequencies are others: at once, at any chunking."""
    model = llama(**SCALINGS[kind])
    if kind == "dynamic":
        model.model.rotary_emb.original_max_seq_len = model.config.max_position_embeddings = 32
        model.model.rotary_emb.max_seq_len_cached = 32
    assert not Rotary(model).steady(9, 100)
    tokens = Tokens.draw(length=150)
    tokens.valid[1, 20:] = False
    outs = [
        feed(fresh(H2O(), tokens, caps, rotary=Rotary(model)), tokens, executor, how)
        for executor, how in (("reference", [150]), ("numba", chunks))
    ]
    given = tokens.valid[:, None, :, None].expand_as(outs[0])
    torch.testing.assert_close(outs[1][given], outs[0][given], atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("prefill", ["evict", "full"])
def test_generation_rolls(prefill):
    model, ids = random_model("llama"), ids_for(40)
    model.generation_config.eos_token_id = None
    cache = EvictionCache(3, H2O(), 12, prefill=prefill)
    with eviction_attention(model, "rolling"):
        whole = model.generate(ids, cache=cache, max_new_tokens=20, do_sample=False, pad_token_id=0)
        other = EvictionCache(3, H2O(), 12, prefill=prefill)
        token, steps = ids, []
        for _ in range(20):
            token = model(token, cache=other).logits[:, -1:].argmax(-1)
            steps.append(token)
    assert torch.equal(whole[:, 40:], torch.cat(steps, dim=1))
    assert cache.states[0].held.tolist() == [12, 12]


def test_angles_stay_small_in_long_streams(rotary):
    """After 100,000 tokens the outputs are those of a stream that starts just before."""
    tokens = Tokens.draw(batch=1, length=64)
    policy = POLICIES["local"][0]
    late, early = (fresh(policy, tokens, CAP, rotary=rotary) for _ in range(2))
    late.seen += 100_000
    late.positions[:, :, :CAP] = torch.arange(100_000 - CAP, 100_000)
    feed(early, Tokens.draw(batch=1, length=CAP, seed=9), "numba")
    late.keys, late.values = early.keys.clone(), early.values.clone()
    outs = [feed(state, tokens, "numba") for state in (late, early)]
    assert torch.equal(*outs)


def test_learned_positions_are_refused():
    with (
        pytest.raises(UserError, match="positions are learned"),
        eviction_attention(random_model("opt"), "rolling"),
    ):
        pass


def test_a_model_without_one_rotary_module_is_refused():
    with pytest.raises(UserError, match="needs one rotary module"):
        Rotary(random_model("llama").model.layers[0])


def test_another_way_to_rotate_is_refused(monkeypatch):
    from transformers.models.llama import modeling_llama

    def interleaved(q, k, cos, sin):
        turned = torch.stack([-q[..., 1::2], q[..., ::2]], dim=-1).flatten(-2)
        return q * cos + turned * sin, k

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", interleaved)
    with pytest.raises(UserError, match="rotates in another way"):
        Rotary(random_model("llama"))


@torch.no_grad()
def test_mixing_the_two_is_refused():
    model, cache = random_model("llama"), EvictionCache(3, H2O(), 12)
    rolled(model, ids_for(5), cache)
    with eviction_attention(model), pytest.raises(UserError, match="must stay with them"):
        model(ids_for(5), cache=cache)
    with eviction_attention(model, "rolling"), pytest.raises(UserError, match="no positions to roll"):
        model(ids_for(5), cache=EvictionCache(3, TopK(), 12))
    with pytest.raises(UserError, match="positions=around is unknown"), eviction_attention(model, "around"):
        pass
