"""Shared contexts, forks and batches give exactly what each choice gives alone."""

import math

import pytest
import torch

from h2o_lab.errors import UserError
from h2o_lab.policies import (
    H2O,
    Budget,
    Full,
    H2ORealDrop,
    PyramidKV,
    SnapKV,
    SpAtten,
    SpAttenCascade,
    Strided,
)
from h2o_lab.tasks.scoring import Choice, Scorer
from tests.support.choices import EVERY, alone, draw
from tests.support.invariants import POLICIES
from tests.support.models import random_model


def questions() -> list[list[Choice]]:
    """Of several lengths; with shared contexts, differing ones, one-token choices, and nothing in common."""
    context, long = draw(0, 40), draw(1, 71)
    stem = draw(2, 30)
    return [
        [Choice(context, draw(3, 6)), Choice(context, draw(4, 9))],
        [Choice(long, draw(5, 1)), Choice(long, draw(6, 1)), Choice(long, draw(7, 3))],
        [Choice((*stem, *draw(8, 2)), draw(9, 7)), Choice((*stem, *draw(10, 4)), draw(9, 7))],
        [Choice(draw(11, 25), draw(12, 2)), Choice(draw(13, 20), draw(12, 2))],
    ]


@pytest.mark.parametrize("batch_tokens", [1, 10_000], ids=["one by one", "batched"])
@pytest.mark.parametrize("base", ["prompt", "sequence"])
@pytest.mark.parametrize("prefill", ["evict", "full"])
@pytest.mark.parametrize("name", ["full", "local", "h2o", "random"])
def test_equals_each_choice_alone(name, prefill, base, batch_tokens):
    model = random_model("llama")
    policy = POLICIES[name][0]
    budget = Budget(fraction=0.3, base=base)
    asked = questions()
    scorer = Scorer(model, policy, budget, prefill, batch_tokens=batch_tokens)
    for choices, scores in zip(asked, scorer.score(asked), strict=True):
        longest = max(len(choice.context) for choice in choices)
        for choice, score in zip(choices, scores, strict=True):
            n = len(choice.tokens) if base == "sequence" else longest
            k = max(2, math.floor(0.3 * n))
            logprob, greedy = alone(model, policy, k, choice, prefill)
            assert score.logprob == pytest.approx(logprob, abs=2e-4)
            assert score.greedy == greedy
            assert score.tokens == len(choice.continuation)
            if policy.evicts:
                assert score.k == k
                assert score.kv_bytes == 3 * 2 * min(k, len(choice.tokens) - 1) * 8 * 2 * 4


@pytest.mark.parametrize("base", ["prompt", "sequence"])
@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.name)
def test_every_policy_equals_each_choice_alone(policy, base):
    model = random_model("llama")
    asked = questions()
    for choices, scores in zip(
        asked, Scorer(model, policy, Budget(fraction=0.3, base=base)).score(asked), strict=True
    ):
        longest = max(len(choice.context) for choice in choices)
        for choice, score in zip(choices, scores, strict=True):
            n = len(choice.tokens) if base == "sequence" else longest
            k = max(2, math.floor(0.3 * n))
            logprob, greedy = alone(model, policy, k, choice, "evict", n)
            assert score.logprob == pytest.approx(logprob, abs=2e-4)
            assert score.greedy == greedy
            assert score.k == k


@pytest.mark.parametrize("positions", ["original", "rolling"])
@pytest.mark.parametrize(
    "policy",
    [SnapKV(recent_tokens=4), PyramidKV(recent_tokens=4), SpAtten(), SpAttenCascade(), H2ORealDrop(), Strided()],
    ids=lambda policy: policy.name,
)
def test_prompts_in_full_equal_each_choice_alone(policy, positions):
    model = random_model("llama")
    asked = questions()
    scorer = Scorer(model, policy, Budget(tokens=12), "full", positions)
    for choices, scores in zip(asked, scorer.score(asked), strict=True):
        longest = max(len(choice.context) for choice in choices)
        for choice, score in zip(choices, scores, strict=True):
            logprob, _ = alone(model, policy, 12, choice, "full", longest, positions)
            assert score.logprob == pytest.approx(logprob, abs=2e-4)


def test_greedy_is_recognised():
    model = random_model("llama")
    context = draw(0, 20)
    ids = model.generate(torch.tensor([context]), max_new_tokens=4, do_sample=False, pad_token_id=1)
    greedy = tuple(ids[0, 20:].tolist())
    right, wrong = Scorer(model, Full(), None).score([[Choice(context, greedy), Choice(context, draw(1, 4))]])[0]
    assert right.greedy
    assert not wrong.greedy


def test_context_is_computed_once():
    model = random_model("llama")
    scorer = Scorer(model, Full(), None)
    context = draw(0, 50)
    scorer.score([[Choice(context, draw(1, 5)), Choice(context, draw(2, 5))]])
    assert scorer.cost.tokens_computed == 50 + 2 * 4


def test_all_choices_of_a_question_share_k_and_cuts_are_counted():
    model = random_model("llama")
    policy = H2O(sink_tokens=4)
    question = [Choice(draw(0, 20), draw(1, 3)), Choice(draw(0, 20), draw(2, 30))]
    scores = Scorer(model, policy, Budget(fraction=0.2)).score([question])[0]
    assert [score.k for score in scores] == [4, 4]
    assert all(score.cut for score in scores)


def test_a_question_longer_than_the_position_table_is_refused_before_anything_runs():
    model = random_model("opt")
    with pytest.raises(UserError, match="300 tokens.*position table has 256"):
        Scorer(model, Full(), None).score([[Choice(draw(0, 290), draw(1, 11))]])


@pytest.mark.parametrize("family", ["opt", "gpt_neox"])
def test_other_families(family):
    model = random_model(family)
    asked = questions()
    for choices, scores in zip(asked, Scorer(model, H2O(), Budget(tokens=12)).score(asked), strict=True):
        for choice, score in zip(choices, scores, strict=True):
            assert score.logprob == pytest.approx(alone(model, H2O(), 12, choice, "evict")[0], abs=2e-4)


@pytest.mark.parametrize("executor", ["reference", "numba"])
def test_numbers_that_are_not_finite_are_an_error(executor):
    model = random_model("llama")
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[0, 0] = float("nan")
    with pytest.raises(UserError, match="not finite in torch.float32"):
        Scorer(model, H2O(), Budget(tokens=8), executor=executor).score(questions())
