"""Generation: against transformers' own `generate`, whatever the batch, and how texts end."""

import math

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from h2o_lab.attention import EvictionCache, eviction_attention
from h2o_lab.errors import UserError
from h2o_lab.policies import H2O, Budget, Full, SnapKV, SpAtten, SpAttenCascade, Strided
from h2o_lab.policies.oracle import DropH2, GlobalH2
from h2o_lab.policies.published import GlobalH2Mask
from h2o_lab.tasks import generation
from h2o_lab.tasks.generation import Sampling, generate, generate_all
from h2o_lab.tasks.reader import Reader
from tests.support.models import character_tokenizer, random_model

TOKENIZER = character_tokenizer()
PROMPTS = [
    TOKENIZER.encode(text)
    for text in (
        "the quick brown fox",
        "jumps",
        "over the lazy dog, and then it sleeps in the sun of June",
        "What a day it was!",
    )
]
SIZES = [Budget(fraction=0.4).entries(len(prompt), 0) for prompt in PROMPTS]
"""k of each prompt: 7, 2, 22, 7."""


def model(family: str = "llama"):
    """A small model whose only end token is the tokenizer's."""
    made = random_model(family)
    made.generation_config.eos_token_id = made.generation_config.pad_token_id = 0
    return made


def continued(prompts, k=None, policy=None, *, names=None, of=None, tokenizer=TOKENIZER, prefill="evict", **how):
    policy = policy or (H2O() if k else Full())
    reader = Reader(of or model(), policy, prefill)
    with reader.open():
        return generate(reader, tokenizer, prompts, k, Sampling(**{"max_new_tokens": 12} | how), names)[0]


def alone(index, sizes=SIZES, **options):
    """What a prompt gives without company."""
    sizes = [sizes[index]] if sizes else None
    return continued([PROMPTS[index]], sizes, names=[index], **options)[0]


@torch.no_grad()
def by_transformers(of, prompt, cache=None, tokens=12):
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": tokens, "do_sample": False, "past_key_values": cache}
    found = of.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :].tolist()
    return found[: found.index(0)] if 0 in found else found


@pytest.mark.parametrize("family", ["llama", "opt", "gpt_neox"])
def test_greedy_equals_transformers_with_the_full_cache(family):
    of = model(family)
    found = continued(PROMPTS, of=of)
    assert [result.tokens for result in found] == [by_transformers(of, prompt) for prompt in PROMPTS]
    assert [result.text for result in found] == [TOKENIZER.decode(result.tokens) for result in found]


@pytest.mark.parametrize("prefill", ["evict", "full"])
@pytest.mark.parametrize("family", ["llama", "opt", "gpt_neox"])
def test_greedy_equals_transformers_with_an_evicting_cache(family, prefill):
    of = model(family)
    found = continued(PROMPTS, SIZES, of=of, prefill=prefill)
    for prompt, k, result in zip(PROMPTS, SIZES, found, strict=True):
        with eviction_attention(of):
            cache = EvictionCache(of.config.num_hidden_layers, H2O(), k, prefill=prefill)
            assert result.tokens == by_transformers(of, prompt, cache)
    other = continued(PROMPTS, SIZES, of=of, prefill={"evict": "full", "full": "evict"}[prefill])
    for different in (other, continued(PROMPTS, of=of)):
        assert [result.tokens for result in found] != [result.tokens for result in different]


def test_bytes_and_tokens_are_counted():
    found = continued(PROMPTS, SIZES)
    layers, heads, size, floats = 3, 2, 8, 4
    assert [result.kv_bytes for result in found] == [layers * heads * 2 * k * size * floats for k in SIZES]
    reader = Reader(model(), Full())
    everything = generate_all(reader, TOKENIZER, PROMPTS, None, Sampling(5), batch_tokens=1000, label="")
    assert all(result.ended_by == "length" for result in everything.results)
    assert everything.caps == [len(prompt) + 4 for prompt in PROMPTS]  # the last token is not fed
    assert reader.tokens == sum(everything.caps)
    assert everything.cut == 0


COMPRESSED = {
    f"{policy.name}, prompt in full": {"policy": policy, "prefill": "full"}
    for policy in (H2O(), SpAtten(), SpAttenCascade(), SnapKV())
}
BATCHED = {"full": {"sizes": None}, "h2o": {}, "by step": {"policy": SpAtten()}, **COMPRESSED}


@pytest.mark.parametrize("drawn", [{}, {"temperature": 1.3, "top_p": 0.9, "seed": 4}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("case", BATCHED)
def test_a_prompt_s_text_does_not_depend_on_its_batch(case, drawn):
    """Rows end at different steps: by the end token, by a stop string, and by length."""
    options = {"of": model(), "stop": ("e", "~"), **BATCHED[case], **drawn}
    options["of"].generation_config.eos_token_id = [0, *range(5, 9)]
    sizes, order = options.pop("sizes", SIZES), [2, 0, 3, 1]
    found = continued([PROMPTS[i] for i in order], sizes and [sizes[i] for i in order], names=order, **options)
    assert found == [alone(i, sizes, **options) for i in order]


def test_draws_depend_on_name_and_seed():
    options = {"temperature": 1.5}
    same, other = continued([PROMPTS[0]] * 2, names=[3, 4], **options)
    assert same.tokens != other.tokens
    assert same.tokens == continued([PROMPTS[0]], names=[3], **options)[0].tokens
    assert same.tokens != continued([PROMPTS[0]], names=[3], seed=1, **options)[0].tokens
    assert continued([PROMPTS[0]] * 2, **options) == continued([PROMPTS[0]] * 2, names=[0, 1], **options)


def test_no_temperature_and_a_small_nucleus_are_greedy():
    greedy = continued(PROMPTS, SIZES)
    assert continued(PROMPTS, SIZES, temperature=5.0, top_p=1e-6) == greedy
    assert continued(PROMPTS, SIZES, temperature=1e-40) == greedy
    assert continued(PROMPTS, SIZES, temperature=5.0) != greedy
    assert continued(PROMPTS, SIZES, seed=7) == greedy


@pytest.mark.parametrize(
    ("temperature", "top_p", "expected"),
    [
        (1.0, 1.0, [0.5, 0.3, 0.15, 0.05]),
        (1.0, 0.79, [0.625, 0.375, 0, 0]),
        (1.0, 0.81, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        (1.0, 0.49, [1, 0, 0, 0]),
        (0.5, 1.0, [0.25 / 0.365, 0.09 / 0.365, 0.0225 / 0.365, 0.0025 / 0.365]),
    ],
)
def test_tokens_are_drawn_with_their_probabilities(temperature, top_p, expected):
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    generator, counts = torch.Generator().manual_seed(0), [0] * 4
    for _ in range(3000):
        counts[generation._draw(logits, Sampling(1, temperature, top_p), generator)] += 1
    for count, share in zip(counts, expected, strict=True):
        assert count / 3000 == pytest.approx(share, abs=0.03 if share else 0)
    even = {generation._draw(torch.zeros(4), Sampling(1, 1.0, 0.5), generator) for _ in range(99)}
    assert len(even) == 2  # two make one half exactly


@pytest.mark.parametrize("tokens", [1, 2, 9])
def test_the_number_of_new_tokens(tokens):
    long = continued(PROMPTS, SIZES, max_new_tokens=9)
    for result, longer in zip(continued(PROMPTS, SIZES, max_new_tokens=tokens), long, strict=True):
        assert (result.tokens, result.ended_by) == (longer.tokens[:tokens], "length")


def test_the_end_token_is_the_model_s_or_the_tokenizer_s():
    (free,) = continued([PROMPTS[0]], SIZES[:1])
    end = free.tokens[4]
    before = free.tokens[: free.tokens.index(end)]
    assert 1 not in before
    of = model()
    for own in (end, [1, end]):
        of.generation_config.eos_token_id = own
        (found,) = continued([PROMPTS[0]], SIZES[:1], of=of)
        assert (found.tokens, found.text, found.ended_by) == (before, TOKENIZER.decode(before), "end")
    tokenizer = character_tokenizer()
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end)
    of.generation_config.eos_token_id = None
    (found,) = continued([PROMPTS[0]], SIZES[:1], tokenizer=tokenizer, of=of)
    assert (found.tokens, found.ended_by) == (before, "end")


@pytest.mark.parametrize(
    ("stop", "text", "tokens"),
    [
        (("###",), "one two three", None),
        (("o",), "", 1),
        (("two",), "one ", 7),
        (("three",), "one two ", 13),
        (("e", "t"), "on", 3),
        (("t", "e"), "on", 3),
        (("wo", "two"), "one ", 7),  # complete at the same token: the one that begins first
        (("two t", "wo"), "one t", 7),  # the one that is complete first
    ],
)
def test_stop_strings(monkeypatch, stop, text, tokens):
    script = iter(TOKENIZER.encode("one two three"))
    monkeypatch.setattr(generation, "_draw", lambda *args: next(script))
    (found,) = continued([PROMPTS[0]], stop=stop, max_new_tokens=13)
    assert found.text == text
    assert found.tokens == TOKENIZER.encode("one two three")[:tokens]
    assert found.ended_by == ("stop" if tokens else "length")


def test_a_stop_string_inside_a_token():
    words = Tokenizer(models.WordLevel({f"a{i:02d}#z": i for i in range(97)}, unk_token="a00#z"))
    words.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="a00#z")
    (free,) = continued([PROMPTS[0]], tokenizer=tokenizer)
    ids = free.tokens
    assert free.text == "".join(f"a{i:02d}#z" for i in ids)
    (found,) = continued([PROMPTS[0]], tokenizer=tokenizer, stop=("#", "z"))
    assert (found.text, found.tokens) == (f"a{ids[0]:02d}", ids[:1])
    (found,) = continued([PROMPTS[0]], tokenizer=tokenizer, stop=("za",))
    assert (found.text, found.tokens) == (f"a{ids[0]:02d}#", ids[:2])


def test_a_stop_string_of_split_characters(monkeypatch):
    """Two tokens make one character: decoded one by one they say nothing."""
    letters = Tokenizer(models.BPE({"<end>": 0, "a": 1, "Ã": 2, "©": 3}, []))
    letters.decoder = decoders.ByteLevel()
    script = iter([1, 2, 3, 1])
    monkeypatch.setattr(generation, "_draw", lambda *args: next(script))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="<end>")
    (found,) = continued([PROMPTS[0]], tokenizer=tokenizer, stop=("é",), max_new_tokens=4)
    assert (found.text, found.tokens) == ("a", [1, 2, 3])


@pytest.mark.parametrize("policy", [GlobalH2(), DropH2(), GlobalH2Mask()], ids=lambda policy: policy.name)
def test_policies_that_look_ahead_are_refused(policy):
    with pytest.raises(UserError, match=f"policy {policy.name} looks at tokens to come: it cannot generate"):
        continued(PROMPTS, SIZES, policy=policy)


def test_numbers_that_are_not_finite_are_refused():
    of = model()
    of.lm_head.weight.data[5] = math.nan
    with pytest.raises(UserError, match=r"logits are not finite in torch.float32: use model.dtype=float32"):
        continued(PROMPTS, SIZES, of=of)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens=0 is out of range"),
        ({"temperature": -0.1}, "temperature=-0.1 is out of range"),
        ({"temperature": math.nan}, "temperature=nan is out of range"),
        ({"top_p": 0.0}, r"top_p=0.0 is out of range: it must be in \(0, 1\]"),
        ({"top_p": 1.1}, "top_p=1.1 is out of range"),
        ({"stop": ("a", "")}, "stop holds an empty string"),
    ],
)
def test_refused_sampling(fields, message):
    with pytest.raises(UserError, match=message):
        Sampling(**{"max_new_tokens": 5} | fields)


def test_all_prompts_in_batches_within_the_bound(monkeypatch):
    seen = []

    def watched(reader, tokenizer, prompts, *args, **kwargs):
        seen.append(len(prompts) * (max(map(len, prompts)) + 12) if len(prompts) > 1 else 0)
        return generate(reader, tokenizer, prompts, *args, **kwargs)

    monkeypatch.setattr(generation, "generate", watched)
    sampling, budget, of = Sampling(12, temperature=1.2), Budget(fraction=0.4), model()
    want = [alone(i, of=of, temperature=1.2) for i in range(4)]
    # 56, 19, 18 and 5 tokens and 12 new ones: three of them make 3 x (19 + 12) = 93
    for bound, batches in ((1, 4), (92, 3), (93, 2), (1000, 1)):
        seen.clear()
        found = generate_all(Reader(of, H2O()), TOKENIZER, PROMPTS, budget, sampling, batch_tokens=bound, label="")
        assert (found.results, found.caps) == (want, SIZES)
        assert found.kv_reserved >= max(result.kv_bytes for result in want)
        assert max(seen) <= bound
        assert len(seen) == batches


@pytest.mark.parametrize(("base", "n"), [("prompt", 56), ("sequence", 68)])
def test_what_a_budget_counts(monkeypatch, base, n):
    caches = []

    def watched(*args, **kwargs):
        found = generate(*args, **kwargs)
        caches.append(found[1])
        return found

    monkeypatch.setattr(generation, "generate", watched)
    budget, reader = Budget(fraction=0.25, base=base), Reader(model(), Strided())
    found = generate_all(reader, TOKENIZER, [PROMPTS[2]], budget, Sampling(12), batch_tokens=99, label="")
    assert found.caps == [n // 4]
    caps = caches[0].states[0].caps
    assert int(caps.period) == math.ceil(n / int(caps.share))


def test_a_prompt_beyond_the_position_table_is_refused():
    def run(tokens, family="opt"):
        reader, prompts = Reader(model(family), H2O()), [(PROMPTS[2] * 5)[:250]]
        return generate_all(
            reader, TOKENIZER, prompts, Budget(tokens=8), Sampling(tokens), batch_tokens=99, label=""
        )

    with pytest.raises(UserError, match="need 257 positions and the model's table has 256"):
        run(8)
    assert run(7).results[0].tokens
    assert run(8, "llama").results[0].tokens
