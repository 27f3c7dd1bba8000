"""The comparison with peers: what its programs answer, on a small random model and in this environment."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numba
import pytest
import torch

from h2o_lab.attention import EvictionCache, eviction_attention
from h2o_lab.errors import UserError
from h2o_lab.policies import H2O
from tests.support.models import random_model

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PROMPT, CONTINUATION, K = 60, 12, 14


@pytest.fixture
def benchmark(monkeypatch):
    """Imports a module of the benchmarks, or a contender's."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.syspath_prepend(BENCHMARKS / "contenders")
    return importlib.import_module


@pytest.fixture
def passage(tmp_path):
    """A small model in a folder, and a command that names a passage; the model and its tokens."""
    model = random_model("llama")
    model.save_pretrained(tmp_path / "model")
    ids = torch.randint(97, (PROMPT + CONTINUATION,), generator=torch.Generator().manual_seed(1))
    passage = {"prompt": ids[:PROMPT].tolist(), "continuation": ids[PROMPT:].tolist()}
    file = tmp_path / "passages.json"
    file.write_text(json.dumps([passage]))
    return SimpleNamespace(
        model=model,
        ids=ids[None],
        folder=str(tmp_path / "model"),
        command={"passages": str(file), "passage": 0, "prompt_tokens": None, "tokens": CONTINUATION, "k": K},
    )


@pytest.fixture
def start(benchmark, passage, tmp_path):
    """Starts a contender's program on the small model."""

    def run(program: str, **options):
        options = {"model": passage.folder, "threads": 1} | options
        place = BENCHMARKS / "contenders" / program
        return benchmark("environments").Worker(program, Path(sys.executable), place, options, tmp_path / "errors")

    return run


@pytest.fixture
def answer(benchmark, passage):
    """What a contender answers, asked in this process."""

    def run(contender: str, k: int, **options):
        options = {"model": passage.folder, "threads": numba.get_num_threads()} | options
        model, build = benchmark(contender).prepare(options)
        return benchmark("protocol").answer(model, build, passage.command | {"k": k})

    return run


def test_h2o_is_scored_as_the_whole_text_is_under_its_cap(start, passage):
    worker = start("h2o.py", prefill="evict")
    assert worker.versions["torch"] == torch.__version__
    assert "h2o_lab" in worker.versions
    answer = [worker.ask(passage.command | {"tokens": tokens}) for tokens in (3, CONTINUATION)][-1]
    worker.close()
    cache = EvictionCache(3, H2O(), K)
    with torch.no_grad(), eviction_attention(passage.model):
        logprobs = passage.model(passage.ids, cache=cache).logits[0, PROMPT - 1 : -1].log_softmax(-1)
    expected = -logprobs.gather(1, passage.ids[0, PROMPT:, None]).sum().item()
    assert answer["nats"] == pytest.approx(expected, rel=1e-4)
    assert (answer["decoded"], answer["scored"]) == (CONTINUATION - 1, CONTINUATION)
    entry = 3 * 2 * 2 * 8 * 4  # layers, heads, keys and values, numbers, bytes
    assert answer["kv_bytes_prompt"] == answer["kv_bytes_end"] == K * entry
    assert answer["resident_peak"] >= answer["resident_before"] > 0


def test_a_prompt_in_full_is_scored_differently_once_it_is_cut(answer):
    evicted, whole = (answer("h2o", K, prefill=prefill) for prefill in ("evict", "full"))
    assert evicted["kv_bytes_prompt"] == whole["kv_bytes_prompt"]
    assert evicted["nats"] != pytest.approx(whole["nats"], rel=1e-4)


def test_the_full_cache_is_what_h2o_is_with_room_for_everything(answer):
    full, roomy = answer("full", K), answer("h2o", PROMPT + CONTINUATION, prefill="evict")
    assert full["nats"] == pytest.approx(roomy["nats"], rel=1e-4)
    assert full["kv_bytes_prompt"] == roomy["kv_bytes_prompt"]
    assert full["kv_bytes_end"] == roomy["kv_bytes_end"] > full["kv_bytes_prompt"]


def test_a_contender_that_ends_says_why_in_a_sentence(start, passage):
    worker = start("full.py")
    with pytest.raises(UserError, match=r"full\.py has ended without an answer \(IndexError"):
        worker.ask(passage.command | {"passage": 1})


def test_an_environment_that_pip_cannot_make_is_said_in_a_sentence(benchmark, monkeypatch, tmp_path):
    environments = benchmark("environments")
    monkeypatch.setenv("H2O_LAB_CACHE", str(tmp_path))
    failed = subprocess.CompletedProcess([], 1, "", "Looking\nERROR: No matching distribution found for kvpress\n")
    monkeypatch.setattr(environments.subprocess, "run", lambda *args, **kwargs: failed)
    with pytest.raises(UserError, match=r"kvpress cannot be made \(No matching distribution found for kvpress\)"):
        environments.environment_python("kvpress", ["kvpress"])


def test_passages_follow_each_other_at_equal_distances(benchmark):
    passages = benchmark("peers").passages
    found = passages(list(range(1000)), 64, 16, 3)
    assert [passage["prompt"][0] for passage in found] == [250, 500, 750]
    assert found[0]["prompt"] + found[0]["continuation"] == list(range(250, 330))
    with pytest.raises(UserError, match="needs 1080 tokens of text, and there are 1000"):
        passages(list(range(1000)), 344, 16, 2)


def test_ratios_are_those_within_a_round(benchmark):
    def answers(*seconds):
        kept = {"nats": 8 * 2.0, "scored": 8, "decoded": 7, "kv_bytes_prompt": 1, "kv_bytes_end": 2}
        return [kept | {"prefill_seconds": s, "decode_seconds": s / 2} for s in seconds]

    row = benchmark("peers").summary(answers(1, 20, 300), answers(2, 10, 900))
    assert (row["prefill_seconds"], row["decode_tokens_per_second"]) == (20, 0.7)
    assert row["prefill_over_full"] == 0.5
    assert row["decode_over_full"] == 2
    assert row["perplexity"] == pytest.approx(torch.e**2)
