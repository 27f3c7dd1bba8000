"""The Triton kernels against the reference executor, interpreted or on a GPU (TRITON_INTERPRET=0)."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from h2o_lab.attention import Caps, EvictionCache, LayerState, attend, eviction_attention, executors
from h2o_lab.attention.executors import check_executor, triton_fits
from h2o_lab.errors import UserError
from h2o_lab.policies import H2O
from tests.support.invariants import EVICTING, POLICIES, Tokens, feed, fresh, kept
from tests.support.models import random_model

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
OLDEST = "3.7" if INTERPRETED else "3.2"  # earlier interpreters fail with today's NumPy
pytest.importorskip("triton", OLDEST, reason=f"the package triton, {OLDEST} or later, is not installed")

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
CAPS = [6, 9]
pytestmark = [
    pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.filterwarnings("ignore:invalid value encountered"),  # the softmax of a row of padding
]


def placed(tokens: Tokens, dtype: torch.dtype = torch.float32) -> Tokens:
    moved = (x.to(DEVICE, dtype) for x in (tokens.q, tokens.k, tokens.v))
    return Tokens(*moved, tokens.valid.to(DEVICE))


def pair(name: str, tokens: Tokens, chunks: list[int], caps=CAPS, **options) -> dict:
    """By executor, the outputs [B, Hq, T, D] in float32 (zeros for padding) and the state."""
    results = {}
    for executor in ("reference", "triton"):
        state = fresh(POLICIES[name][0], tokens, caps, **options)
        out = feed(state, tokens, executor, chunks)
        assert out.dtype == state.keys.dtype == tokens.q.dtype
        results[executor] = out.float().masked_fill(~tokens.valid[:, None, :, None], 0), state
    return results


def assert_equal(results: dict, tolerance: float) -> None:
    (right, expected), (out, state) = results["reference"], results["triton"]
    torch.testing.assert_close(out, right, atol=tolerance, rtol=0)
    assert state.seen.tolist() == expected.seen.tolist()
    by_age, by_age_expected = state.positions.argsort(dim=-1), expected.positions.argsort(dim=-1)
    for field in ("positions", "scores", "keys", "values", "static"):
        mine, theirs = getattr(state, field), getattr(expected, field)
        if mine is None:
            assert theirs is None
            continue
        if mine.dim() == 4:
            mine = mine.gather(2, by_age[..., None].expand_as(mine))
            theirs = theirs.gather(2, by_age_expected[..., None].expand_as(theirs))
        else:
            mine, theirs = mine.gather(2, by_age), theirs.gather(2, by_age_expected)
        torch.testing.assert_close(mine, theirs, atol=1e-4 if field == "scores" else 0, rtol=0, msg=field)


@pytest.mark.parametrize("name", EVICTING)
def test_every_policy_in_chunks_and_steps(name):
    tokens = placed(Tokens.draw(length=17))
    assert_equal(pair(name, tokens, [4, 8, 1, 1, 1, 1, 1]), 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["h2o", "h2o_mean", "tova", "knorm"])
def test_half_precision_inputs_with_float32_scores(name, dtype):
    results = pair(name, placed(Tokens.draw(length=14, group=2), dtype), [9, 1, 1, 1, 2])
    assert results["triton"][1].scores.dtype == torch.float32
    assert_equal(results, 2e-2)


@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("size", [3, 16, 40])
def test_shapes(group, size):
    tokens = placed(Tokens.draw(batch=1, heads=2, group=group, length=12, size=size))
    assert_equal(pair("h2o", tokens, [5, 4, 1, 1, 1], caps=[7]), 1e-5)


@pytest.mark.parametrize("name", ["h2o", "h2o_mean", "tova", "strided_sinks"])
def test_padding_is_skipped(name):
    """Holes, a row of padding alone, and calls in which a row has nothing."""
    tokens = placed(Tokens.draw(batch=3, group=2, length=16))
    valid = torch.ones(3, 16, dtype=torch.bool)
    valid[0, :5] = valid[0, 13] = valid[1, 9:] = valid[2] = False
    tokens = replace(tokens, valid=valid.to(DEVICE))
    results = pair(name, tokens, [3, 9, 1, 1, 1, 1], caps=[6, 5, 6])
    assert_equal(results, 1e-5)
    assert [len(kept(results["triton"][1], b)) for b in range(3)] == [6, 5, 0]


def test_longer_than_a_tile_and_a_block():
    """Tiles of 64 entries, blocks of 64 tokens, spans of 256 in search of the victim."""
    tokens = placed(Tokens.draw(batch=1, heads=1, group=2, length=303))
    results = {}
    for executor in ("numba" if INTERPRETED else "reference", "triton"):
        state = fresh(POLICIES["h2o"][0], tokens, [290])
        results["triton" if executor == "triton" else "reference"] = (
            feed(state, tokens, executor, [300, 1, 2]),
            state,
        )
    assert_equal(results, 1e-5)


def test_ties_go_by_position_and_nothing_ranks_above_infinity():
    """Equal, infinite, negative and undefined numbers, minus zero among them."""
    tokens = placed(Tokens.draw(batch=1, heads=1, group=1, length=12))
    numbers = [2.0, 0.0, -0.0, torch.nan, torch.inf, -torch.inf, -3.0, -2.0, torch.nan, 0.0, 1.0, 1.0]
    static = torch.tensor(numbers, device=DEVICE).view(1, 1, -1)
    for chunks in ([12], [1] * 12):
        state = LayerState.empty(
            POLICIES["knorm"][0], Caps.of(POLICIES["knorm"][0], [8]), tokens.k, tokens.v, static=True
        )
        start, gone = 0, []
        for n in chunks:
            part = slice(start, start + n)
            now = tokens.columns(part)
            attend(now.q, now.k, now.v, state, scale=1.0, static=static[:, :, part], executor="triton")
            start += n
        gone = sorted(set(range(12)) - set(kept(state)))
        assert gone == [1, 5, 6, 7]


def test_evictions_are_recorded():
    tokens = placed(Tokens.draw(length=14, group=2))
    results = pair("h2o", tokens, [9, 1, 4], record=True)
    assert_equal(results, 1e-5)
    assert torch.equal(results["triton"][1].evicted_at, results["reference"][1].evicted_at)


@pytest.mark.parametrize("name", ["h2o_official_mask", "topk_h2"])
def test_what_runs_beside_a_mask(name):
    tokens = placed(Tokens.draw(batch=1, heads=1, group=2, length=14))
    assert_equal(pair(name, tokens, [9, 1, 4], caps=[6]), 1e-5)


@pytest.mark.parametrize("name", ["full", "h2o", "tova", "h2o_max"])
def test_without_a_cap_no_token_waits_for_another(name, monkeypatch):
    from h2o_lab.attention import triton_scan

    monkeypatch.setattr(triton_scan, "_walk", None)
    tokens = placed(Tokens.draw(length=20))
    tokens.valid[0, :3] = tokens.valid[1, 17:] = False
    results = {}
    for executor in ("reference", "triton"):
        state = fresh(POLICIES[name][0], tokens, CAPS)
        state.caps = Caps.unbounded(2)
        results[executor] = feed(state, tokens, executor, [11, 9]), state
    results = {
        executor: (out * tokens.valid[:, None, :, None], state) for executor, (out, state) in results.items()
    }
    assert_equal(results, 1e-5)


def test_a_shrunk_prompt_goes_on():
    """prefill: full, then steps under the cap."""
    tokens, more = placed(Tokens.draw(length=15)), placed(Tokens.draw(length=3, seed=1))
    results = {}
    for executor in ("reference", "triton"):
        state = fresh(POLICIES["h2o"][0], tokens, CAPS)
        state.caps = Caps.unbounded(2)
        feed(state, tokens, executor)
        small = state.shrunk(Caps.of(POLICIES["h2o"][0], CAPS))
        results[executor] = feed(small, more, executor, [1, 2]), small
    assert_equal(results, 1e-5)


def test_what_the_kernels_leave_out_is_the_reference(monkeypatch):
    from h2o_lab.attention import triton_attend, triton_scan, triton_step

    for module, kernel in ((triton_step, "_step"), (triton_scan, "_walk")):
        monkeypatch.setattr(module, kernel, None)
    double = placed(Tokens.draw(length=12), torch.float64)
    assert_equal(pair("h2o", double, [11, 1]), 1e-6)
    monkeypatch.setattr(triton_attend, "WIDEST", 70)
    assert_equal(pair("h2o", placed(Tokens.draw(length=12)), [11, 1]), 0)


@pytest.mark.parametrize(
    ("policy", "positions"),
    [(H2O(), "original"), (H2O(scope="model"), "original"), (H2O(), "rolling")],
    ids=["head", "model", "rolling"],
)
def test_a_model_generates_the_same(policy, positions):
    """Padded prompts; scopes across layers are read in full first; rolling positions are the reference's."""
    model = random_model("llama").to(DEVICE)
    ids = torch.randint(5, 97, (2, 9), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    layers = model.config.num_hidden_layers
    texts = []
    for executor in ("reference", "triton"):
        prefill = "full" if policy.by_step else "evict"
        cache = EvictionCache(layers, policy, 6, executor=executor, prefill=prefill)
        with torch.inference_mode(), eviction_attention(model, positions):
            out = model.generate(
                ids, attention_mask=mask, past_key_values=cache, max_new_tokens=4, do_sample=False, pad_token_id=0
            )
        texts.append((out.tolist(), [kept(state, b) for state in cache.states for b in range(2)]))
    assert texts[0] == texts[1]


def test_where_it_runs(monkeypatch):
    check_executor("triton", torch.device("cuda"))
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(UserError, match=r"^executor=triton runs on CUDA devices, and the model is on cpu: use"):
        check_executor("triton", torch.device("cpu"))
    monkeypatch.setattr(executors, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="the package triton is not installed"):
        check_executor("triton", torch.device("cuda"))
    assert not triton_fits(torch.device("cuda"))


@pytest.mark.parametrize(("capability", "fits"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_auto_takes_it_from_ampere_on(monkeypatch, capability, fits):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert triton_fits(torch.device("cuda")) == fits
    assert not triton_fits(torch.device("cpu"))


def test_the_kernels_compile_for_a_gpu(tmp_path):
    """To machine code of two generations; this needs no GPU."""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.triton_compiled"],
        env=os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout.split()[-1]) == 12
