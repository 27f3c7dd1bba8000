"""`python -m h2o_lab.plan`: what is predicted is what a run then takes."""

import pytest

from h2o_lab.memory import kv_bytes
from h2o_lab.plan.cost import slots
from h2o_lab.plan.planner import plan
from tests.support.models import random_model
from tests.support.plan_cases import ASKED, FIXED, PIQA, given, ran, workplace

__all__ = ["given", "workplace"]  # fixtures

SCORED = {
    "the full cache": [*PIQA, "policy=full"],
    "h2o": [*PIQA, "policy=h2o", "budget=0.2"],
    "h2o with a wide batch": ["task.num_fewshot=1", "task.batch_tokens=4096", "policy=h2o", "budget=0.6"],
    "entries": [*PIQA, "policy=streaming", "budget_tokens=20"],
    "more entries than tokens": [*PIQA, "policy=h2o", "budget_tokens=1000"],
    "each choice its own budget": [*PIQA, "policy=local", "budget=0.3", "budget_base=sequence"],
    "a prompt in full": [*PIQA, "policy=h2o", "budget=0.3", "prefill=full"],
    "a prompt in full that nearly fits": [*PIQA, "policy=h2o", "budget_tokens=110", "prefill=full"],
    "a prompt in full that fits": [*PIQA, "policy=h2o", "budget_tokens=1000", "prefill=full"],
    "one set for all layers": [*PIQA, "policy=spatten", "budget=0.3"],
    "one set for all layers, in full": [*PIQA, "policy=spatten", "budget=0.3", "prefill=full"],
    "fewer in later layers": [*PIQA, "policy=spatten_cascade", "budget=0.3"],
    "a compressed prompt": [*PIQA, "policy=pyramidkv", "budget=0.5", "prefill=full", "policy.recent_tokens=8"],
    "one more": [*PIQA, "policy=h2o_real_drop", "budget=0.3"],
    "a mask": [*PIQA, "policy=topk", "budget=0.3"],
    "a mask with a companion": [*PIQA, "policy=topk_h2", "budget=0.3"],
    "two passes": [*PIQA, "policy=global_h2", "budget=0.3"],
    "a mask in two passes": [*PIQA, "policy=drop_h2", "budget=0.3"],
    "contexts that differ": ["task=winogrande", "task.num_fewshot=0", "policy=h2o", "budget=0.4"],
    "contexts that differ, in full": [
        *["task=winogrande", "task.num_fewshot=0", "policy=h2o", "budget=0.4", "prefill=full"]
    ],
    "shared examples, the full cache": [*FIXED, "policy=full"],
    "shared examples, the full cache, prompts in full": [*FIXED, "policy=full", "prefill=full"],
    "shared examples, entries": [*FIXED, "policy=h2o", "budget_tokens=40"],
    "shared examples, more entries than tokens": [*FIXED, "policy=h2o", "budget_tokens=1000"],
    "shared examples, a share": [*FIXED, "policy=h2o", "budget=0.1", "task.limit=16"],
    "shared examples, a share, prompts in full": [*FIXED, "policy=h2o", "budget=0.1", "prefill=full"],
    "shared examples, each choice its own budget": [*FIXED, "policy=local", "budget=0.1", "budget_base=sequence"],
    "shared examples, a pattern": [*FIXED, "policy=strided_h2", "budget_tokens=40"],
    "shared examples, fewer in later layers": [*FIXED, "policy=spatten_cascade", "budget_tokens=30"],
    "shared examples, a mask with a companion": [*FIXED, "policy=topk_h2", "budget_tokens=40"],
    "shared examples, two passes": [*FIXED, "policy=global_h2", "budget=0.1"],
    "shared examples, recorded": [*FIXED, "policy=h2o", "budget_tokens=40", "stats=attention"],
    "windows": ["task=text", "task.path={}/book.txt", "task.window=100", "policy=h2o", "budget=0.2"],
    "windows that overlap": [
        *["task=text", "task.path={}/book.txt", "task.window=90", "task.stride=40", "task.batch_tokens=200"],
        "policy=full",
    ],
    "a stream": [
        *["task=text", "task.path={}/book.txt", "task.mode=streaming", "task.chunk=30", "task.every=50"],
        *["policy=h2o", "budget_tokens=100"],
    ],
    "a stream in full": [
        *["task=text", "task.path={}/book.txt", "task.mode=streaming", "task.chunk=64", "task.every=50"],
        *["policy=h2o", "budget=0.3", "prefill=full"],
    ],
    "a stream that keeps everything": [
        *["task=text", "task.path={}/book.txt", "task.mode=streaming", "task.chunk=30", "policy=full"],
        "task.every=20",
    ],
    "lm-eval's log-likelihoods": [
        *["task=lm_eval", "task.name=asks", "task.include_path={}/loglikelihood", "task.num_fewshot=0"],
        *["policy=h2o", "budget=0.5"],
    ],
    "lm-eval's rolling texts": [
        *["task=lm_eval", "task.name=asks", "task.include_path={}/loglikelihood_rolling", "task.num_fewshot=0"],
        *["policy=h2o", "budget=0.5"],
    ],
}


@pytest.mark.parametrize("case", SCORED)
def test_tokens_and_bytes_are_those_of_the_run(given, case):
    (line,) = plan(given(*SCORED[case]))
    record, samples = ran(line.cell)
    cost = line.cost
    assert cost.exact
    assert cost.samples == len(samples)
    assert cost.tokens == record["tokens"]["computed"]
    assert (cost.k_mean, cost.k_min, cost.k_max) == tuple(record["k"][key] for key in ("mean", "min", "max"))
    assert (cost.kv_mean, cost.kv_max, cost.kv_batch) == tuple(
        record["kv_bytes"][key] for key in ("resident_mean", "resident_max", "reserved_max")
    )


GENERATED = {
    "the full cache": ["policy=full"],
    "h2o": ["policy=h2o", "budget=0.3"],
    "a prompt in full": ["policy=h2o", "budget=0.3", "prefill=full"],
    "a prompt in full, with room": ["policy=h2o", "budget_tokens=200", "prefill=full"],
    "prompt and answer": ["policy=local", "budget=0.5", "budget_base=sequence"],
}


@pytest.mark.parametrize("task", ASKED)
@pytest.mark.parametrize("case", GENERATED)
def test_texts_that_are_generated_are_counted_at_their_longest(given, case, task):
    (line,) = plan(given(*ASKED[task], *GENERATED[case]))
    record, samples = ran(line.cell)
    cost, (part,) = line.cost, line.work.parts
    unused = cost.tokens - record["tokens"]["computed"]
    assert 0 <= unused <= len(part.prompts) * (part.new_tokens - 1)
    assert unused == 0 or task == "lm-eval", "without stop strings these texts do not end early"
    assert cost.samples == len(samples)
    predicted, found = (cost.kv_max, cost.kv_batch), record["kv_bytes"]
    assert predicted[0] >= found["resident_max"]
    assert predicted[1] >= found["reserved_max"]
    if unused == 0:
        assert predicted == (found["resident_max"], found["reserved_max"])
    if "policy=full" not in GENERATED[case]:
        assert cost.k_mean == record["k"]["mean"]


def test_bytes_of_the_largest_sequence_follow_from_its_entries(given):
    (line,) = plan(given(*PIQA, "policy=spatten_cascade", "budget=0.5"))
    config = random_model("llama").config
    assert len(set(line.cost.entries)) > 1
    assert line.cost.kv_max == kv_bytes(config, line.cost.entries, dtype="float32")


@pytest.mark.parametrize(
    ("cap", "first", "last", "step", "expected"),
    [
        (None, 10, 10, 1, 10),
        (None, 10, 11, 1, 12),  # a quarter more
        (None, 10, 100, 90, 100),  # what is needed
        (None, 8, 10, 1, 10),
        (5, 10, 20, 1, 5),
        (16, 10, 100, 1, 16),
    ],
)
def test_slots_grow_by_a_quarter_up_to_the_cap(cap, first, last, step, expected):
    assert slots(cap, first, last, step) == expected
