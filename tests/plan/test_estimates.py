"""What a plan estimates: sums of what it did not look at, time, and what fits the device."""

import pytest
import torch

from h2o_lab.config import ModelConfig
from h2o_lab.plan import device, planner
from h2o_lab.plan.planner import plan
from tests.support.plan_cases import ASKED, FIXED, given, measurements, ran, shown, workplace

__all__ = ["given", "measurements", "workplace"]  # fixtures


# Estimates


def test_sums_are_scaled_where_not_all_was_looked_at(given):
    words = given("task.limit=16", "task.num_fewshot=2", "policy=h2o", "budget=0.2")
    (whole,), (part,) = plan(words), plan(words, 4)
    assert (part.work.looked_at, part.work.total, part.cost.samples) == (4, 16, 16)
    assert part.cost.exact is False
    assert part.cost.tokens == pytest.approx(whole.cost.tokens, rel=0.15)
    assert part.cost.tokens != whole.cost.tokens


def test_what_questions_share_is_counted_once_whatever_was_looked_at(given):
    words = given("task.limit=16", *FIXED, "policy=h2o", "budget_tokens=40")
    (whole,), (part,) = plan(words), plan(words, 4)
    (sampled,) = plan([word for word in words if word != "task.fewshot=fixed"])
    assert part.cost.tokens == pytest.approx(whole.cost.tokens, rel=0.15)
    assert 2 * whole.cost.tokens < sampled.cost.tokens


def test_questions_at_each_depth_are_looked_at(given):
    words = given("task=needle", "task.size=60", "task.limit=4", "policy=h2o", "budget=0.2")
    (part,) = plan(words, 5)
    assert (part.work.looked_at, part.work.total) == (5, 20)


def test_documents_that_are_not_looked_at_are_counted(given):
    (part,) = plan(given("task=xsum", "policy=h2o", "budget=0.2", "task.limit=9"), 3)
    assert (part.work.looked_at, part.cost.samples) == (3, 9)


def test_each_policy_is_measured_once_for_each_model(workplace, given, measurements):
    models = f"model.path={workplace}/llama,{workplace}/opt"
    lines = plan(given(models, "policy=h2o,local", "budget=0.2,0.5", "task.num_fewshot=0"), calibrate=True)
    assert measurements == [(model, policy, 0.2) for model in ("llama", "opt") for policy in ("h2o", "local")]
    assert [line.seconds for line in lines] == [line.cost.tokens / 100 for line in lines]
    assert len(lines) == 8


def test_time_counts_what_is_read_and_each_call_behind_it(given, measurements):
    (line,) = plan(given(*ASKED["xsum"], "policy=full"), calibrate=True)
    batches = -(-line.cost.samples // line.cost.batch)
    assert line.cost.steps >= batches * 8
    assert line.cost.steps % 8 == 0, "each batch is continued by 8 calls"
    assert line.seconds == pytest.approx(line.cost.read / 100 + line.cost.steps / 2)


def test_what_does_not_fit_is_said_and_not_measured(given, measurements, monkeypatch):
    monkeypatch.setattr(planner, "memory_of", lambda cfg: device.Memory("GPU", 1000, 2000))
    planner._model.cache_clear()
    (line,) = plan(given("policy=full", "task.num_fewshot=0"), calibrate=True)
    planner._model.cache_clear()
    assert (line.fit, line.fits, line.seconds, measurements) == (False, 0, None, [])
    assert "GPU: no" in shown([line])
    assert "GPU (1.0 KiB free of 2.0 KiB)" in shown([line])


def test_the_most_that_fit_do_fit(given):
    (line,) = plan(given("policy=h2o", "budget=0.2", "task.num_fewshot=0"))
    left = line.memory.free - line.weights
    assert line.fits * line.cost.kv_max <= left < (line.fits + 1) * line.cost.kv_max
    assert line.fit


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (["policy=h2o", "budget=0.2", "task.num_fewshot=2"], False),
        (["policy=global_h2", "budget=0.2", "task.num_fewshot=1"], False),
        (["policy=spatten", "budget=0.2", "task.num_fewshot=1"], True),
        (["policy=h2o", "budget=0.2", "prefill=full", *ASKED["xsum"]], True),
        (["policy=h2o", "budget=0.2", "task=text", "task.path={}/book.txt", "task.window=64"], False),
        (
            ["policy=full", "task=text", "task.path={}/book.txt", "task.mode=streaming", "task.chunk=50"],
            False,
        ),
    ],
)
def test_a_real_model_is_measured_on_the_cell_itself(given, words, steps):
    (line,) = plan(given(*words), calibrate=True)
    record, _ = ran(line.cell)
    assert line.seconds is not None
    assert record["seconds"]["model"] / 30 < line.seconds < record["seconds"]["model"] * 30
    assert (line.cost.steps > 0) == ("task=xsum" in words)
    assert steps or line.cost.read == line.cost.tokens


# The device


def test_memory_is_that_of_the_machine_or_of_the_gpus(monkeypatch):
    import psutil

    found = device.memory_of(ModelConfig("x", "local", device="cpu"))
    assert (found.place, found.total) == ("RAM", psutil.virtual_memory().total)
    assert 0 < found.free <= found.total
    assert device.memory_of(ModelConfig("x", "local", device_map="auto")).place in ("RAM", "GPU", "2 GPUs")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: ((10, 40), (20, 50))[gpu])
    assert device.memory_of(ModelConfig("x", "local")) == device.Memory("GPU", 10, 40)
    assert device.memory_of(ModelConfig("x", "local", device="cuda:1")) == device.Memory("GPU", 20, 50)
    assert device.memory_of(ModelConfig("x", "local", device_map="auto")) == device.Memory("2 GPUs", 30, 90)
