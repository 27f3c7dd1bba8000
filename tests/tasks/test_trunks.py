"""What questions begin with is read once, and each is what it is alone."""

from collections import Counter
from itertools import pairwise

import pytest
import torch

from h2o_lab.cells import Journal
from h2o_lab.policies import H2O, Budget, Full, GlobalH2, H2Only, Local, Policy, SnapKV, Strided
from h2o_lab.tasks.scoring import Scorer
from h2o_lab.tasks.units import BEGINNING, WORTH, Choice
from tests.support.choices import EVERY, alone, common, draw
from tests.support.models import random_model

SHOTS = draw(100, 140)
CAUSAL = [Full(), *(policy for policy in EVERY if policy.causal)]


def questions(shots: tuple[int, ...] = SHOTS) -> list[list[Choice]]:
    """Of five lengths, two of which come twice and thrice; one whose contexts differ."""
    asked = []
    for i, length in enumerate((6, 22, 6, 13, 30, 22, 22)):
        context = (*shots, *draw(i, length))
        asked.append([Choice(context, draw(20 + i, 1 + i)), Choice(context, draw(40 + i, 8 - i))])
    stem = (*shots, *draw(60, 9))
    asked.append([Choice((*stem, *draw(61, 2)), draw(63, 5)), Choice((*stem, *draw(62, 4)), draw(63, 5))])
    return asked


class Watched(Scorer):
    """Remembers which positions each choice held at its end, by layer and head."""

    def _scores(self, units, owner, choices, totals, matches, cache):
        for row, choice in enumerate(choices):
            layers = [state.positions[row] for state in cache.states]
            self.held[choice] = [[sorted(set(head.tolist()) - {-1}) for head in layer] for layer in layers]
        return super()._scores(units, owner, choices, totals, matches, cache)


def scored(asked, policy: Policy, budget: Budget | None, model=None, **settings) -> Watched:
    scorer = Watched(model or random_model("llama"), policy, budget, **settings)
    scorer.held = {}
    scorer.found = scorer.score(asked)
    return scorer


def check_each_alone(asked, policy, budget, **settings) -> tuple[Scorer, int]:
    """Assert that all is as with each question by itself; the scorer, and the tokens that this took."""
    together = scored(asked, policy, budget, **settings)
    tokens = 0
    for choices, scores in zip(asked, together.found, strict=True):
        one = scored([choices], policy, budget, trunks=False, **settings)
        tokens += one.cost.tokens_computed
        for choice, score, expected in zip(choices, scores, one.found[0], strict=True):
            assert score.logprob == pytest.approx(expected.logprob, abs=2e-4)
            assert (score.greedy, score.tokens, score.k, score.cut, score.kv_bytes) == (
                expected.greedy,
                expected.tokens,
                expected.k,
                expected.cut,
                expected.kv_bytes,
            )
            assert together.held[choice] == one.held[choice]
    return together, tokens


def saved(asked, rules) -> int:
    """Tokens that are not read again where questions with the same rule share what they begin with."""
    groups: dict[object, list[tuple[int, ...]]] = {}
    for choices, rule in zip(asked, rules, strict=True):
        groups.setdefault(rule, []).append(common([choice.context for choice in choices]))
    return sum((len(contexts) - 1) * len(common(contexts)) for contexts in groups.values())


@pytest.mark.parametrize("policy", CAUSAL, ids=lambda policy: policy.name)
def test_every_policy_equals_each_question_alone(policy):
    asked, budget = questions(), Budget(tokens=20) if policy.budgeted else None
    together, tokens = check_each_alone(asked, policy, budget, batch_tokens=500)
    rules = [policy.protection(20, max(len(choice.context) for choice in choices)) for choices in asked]
    assert together.cost.tokens_computed == tokens - saved(asked, rules)
    assert (len(set(rules)) > 1) == (policy.pattern is not None)


@pytest.mark.parametrize("batch_tokens", [1, 400, 10_000])
@pytest.mark.parametrize("positions", ["original", "rolling"])
@pytest.mark.parametrize("policy", [Full(), H2O(), Strided()], ids=lambda policy: policy.name)
def test_a_share_of_each_prompt_is_shared_by_those_with_the_same_k(policy, positions, batch_tokens):
    asked, budget = questions(), Budget(fraction=0.1) if policy.budgeted else None
    settings = {"positions": positions, "batch_tokens": batch_tokens}
    together, tokens = check_each_alone(asked, policy, budget, **settings)
    ks = [scores[0].k if policy.budgeted else None for scores in together.found]
    assert together.cost.tokens_computed == tokens - saved(asked, ks)
    assert sorted(Counter(ks).values()) == ([1, 2, 2, 3] if policy.budgeted else [8])


def test_choices_with_budgets_of_their_own_share_with_whoever_has_the_same():
    asked, budget = questions(), Budget(fraction=0.1, base="sequence")
    together, tokens = check_each_alone(asked, H2O(), budget)
    ks = Counter(score.k for scores in together.found for score in scores)
    assert len(ks) < 6
    assert together.cost.tokens_computed <= tokens - (16 - len(ks)) * len(SHOTS)


@pytest.mark.parametrize("family", ["opt", "gpt_neox"])
@pytest.mark.parametrize("policy", [Full(), H2O()], ids=lambda policy: policy.name)
def test_other_families(policy, family):
    budget = Budget(tokens=20) if policy.budgeted else None
    together, tokens = check_each_alone(questions(), policy, budget, model=random_model(family))
    assert together.cost.tokens_computed < tokens


@pytest.mark.parametrize("executor", ["reference", "numba"])
def test_the_contract_holds_choice_by_choice(executor):
    model, asked = random_model("llama"), questions()
    together = scored(asked, H2O(), Budget(tokens=20), model, executor=executor)
    for choices, scores in zip(asked, together.found, strict=True):
        for choice, score in zip(choices, scores, strict=True):
            logprob, greedy = alone(model, H2O(), 20, choice, "evict")
            assert score.logprob == pytest.approx(logprob, abs=2e-4)
            assert score.greedy == greedy


@pytest.mark.parametrize(
    "policy", [Full(), *(p for p in CAUSAL if not p.evicts and p.budgeted)], ids=lambda p: p.name
)
def test_what_evicts_nothing_is_shared_with_prompts_in_full_too(policy):
    budget = Budget(tokens=20) if policy.budgeted else None
    together, tokens = check_each_alone(questions(), policy, budget, prefill="full")
    assert together.cost.tokens_computed < tokens


@pytest.mark.parametrize(
    ("policy", "prefill"),
    [
        (H2O(), "full"),
        (SnapKV(recent_tokens=4), "full"),
        (GlobalH2(), "evict"),
        (H2Only(priority="given"), "evict"),
    ],
    ids=["a prompt in full", "a compressed prompt", "one that looks ahead", "two passes"],
)
def test_where_the_end_decides_about_the_beginning_nothing_is_shared(policy, prefill):
    batches = Scorer(random_model("llama"), policy, Budget(tokens=20), prefill).batches(questions())
    assert all(batch.trunk is None for batch in batches)


def test_what_is_recorded_is_read_whole():
    read = []

    class Recorder:
        def saw(self, *seen):
            pass

        def conclude(self, texts):
            read.extend(tuple(text) for text in texts)

    asked = questions()
    scored(asked, H2O(), Budget(tokens=20), recorder=Recorder())
    assert sorted(read) == sorted(common([choice.context for choice in choices]) for choices in asked)


def test_a_copy_counts_as_what_it_was_copied_from():
    """Sharing takes no larger batches, and no more memory than the trunk's besides."""
    asked, model = questions(), random_model("llama")
    for batch in Scorer(model, Full(), None, batch_tokens=500).batches(asked):
        assert max(len(unit.prefix) for unit in batch.units) * len(batch.units) <= 500
    alike = [[Choice((*SHOTS, i, *draw(i, 8 + 5 * i)), draw(i, 5))] for i in range(6)]
    shared, whole = (scored(alike, Full(), None, model, batch_tokens=500, trunks=on) for on in (True, False))
    trunk = 3 * 2 * 2 * 8 * 4 * len(SHOTS)  # layers, keys and values, KV heads, dimensions, bytes
    assert shared.cost.kv_bytes_reserved == whole.cost.kv_bytes_reserved + trunk


def test_questions_with_little_in_common_are_read_as_ever():
    little = questions(draw(100, BEGINNING - 20))
    two = [[Choice((*draw(100, WORTH - 1), 90 + i, 5), draw(i, 5))] for i in range(2)]
    for asked in (little, two):
        batches = Scorer(random_model("llama"), Full(), None).batches(asked)
        assert all(batch.trunk is None for batch in batches)


def test_a_stranger_among_the_questions_stays_alone():
    stranger = [Choice(draw(70, 90), draw(71, 4)), Choice(draw(70, 90), draw(72, 4))]
    asked = [*questions(), stranger]
    together, tokens = check_each_alone(asked, Full(), None)
    assert together.cost.tokens_computed == tokens - saved(questions(), [None] * 8)


@pytest.mark.parametrize("policy", [Local(), H2O()], ids=lambda policy: policy.name)
def test_a_killed_run_goes_on_exactly(tmp_path, policy, monkeypatch):
    """Wherever it is stopped: within a trunk, between two, or behind all of them."""
    asked, model, budget = questions(), random_model("llama"), Budget(fraction=0.1)
    whole = Scorer(model, policy, budget, batch_tokens=300)
    expected, batches = whole.score(asked), whole.batches(asked)
    assert [batch.trunk is not None for batch in batches].count(True) > 3
    assert any(one.trunk is other.trunk is not None for one, other in pairwise(batches))
    run = Scorer._run
    for done in range(1, len(batches)):
        file, count = tmp_path / str(done), iter(range(done))

        def stops(self, *arguments, count=count):
            if next(count, None) is None:
                raise KeyboardInterrupt
            return run(self, *arguments)

        monkeypatch.setattr(Scorer, "_run", stops)
        with pytest.raises(KeyboardInterrupt):
            Scorer(model, policy, budget, batch_tokens=300, journal=Journal(file)).score(asked)
        monkeypatch.setattr(Scorer, "_run", run)
        journal = Journal(file)
        assert len(journal) == done
        again = Scorer(model, policy, budget, batch_tokens=300, journal=journal)
        assert again.score(asked) == expected
        assert len(journal) == len(batches)
        assert again.cost.tokens_computed == whole.cost.tokens_computed
        assert again.cost.kv_bytes_reserved == whole.cost.kv_bytes_reserved


def test_a_journal_tells_what_was_read_behind_a_trunk_from_what_was_not(tmp_path):
    asked, model = questions(), random_model("llama")
    journal = Journal(tmp_path / "journal")
    kept = Scorer(model, Full(), None, trunks=False, journal=journal)
    kept.score(asked)
    shared = Scorer(model, Full(), None, journal=journal)
    shared.score(asked)
    assert shared.cost.tokens_computed < kept.cost.tokens_computed


def test_the_model_is_not_asked_for_logits_of_a_trunk():
    rows = []
    model = random_model("llama")
    model.lm_head.register_forward_hook(lambda module, given, out: rows.append(out.shape[:-1].numel()))
    asked = questions()
    scored(asked, Full(), None, model)
    with torch.no_grad():
        assert sum(rows) <= sum(1 + len(c.continuation) + 4 for choices in asked for c in choices)
