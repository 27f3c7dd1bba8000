"""Tokens that become important late: `h2o` keeps them, the published mask loses them, on both executors."""

from pathlib import Path

import numba
import pytest
import torch

from h2o_lab.attention import Caps, LayerState, attend
from h2o_lab.policies import H2O, H2OOfficialMask
from h2o_lab.results import load, load_samples

ROOT = Path(__file__).resolve().parents[2]
LENGTH, K, DELAY = 320, 64, 4
SEEDS = range(3)


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors this small are no work for two, and threads that wait for each other are slow on a busy machine."""
    threads = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads[0])
    numba.set_num_threads(threads[1])


@pytest.fixture
def late(monkeypatch):
    """`experiments.late_tokens`."""
    monkeypatch.syspath_prepend(str(ROOT))
    from experiments import late_tokens

    return late_tokens


@pytest.fixture
def main(late, monkeypatch, tmp_path):
    """Its `main`; returns the folder of results."""
    monkeypatch.setattr("h2o_lab.log.set_up", lambda: None)  # global, and not to be undone

    def run(*arguments: str) -> Path:
        late.main(["--results-dir", str(tmp_path), "--threads", "1", *arguments])
        return tmp_path

    return run


@pytest.mark.parametrize("executor", ["reference", "numba"])
@pytest.mark.parametrize("seed", SEEDS)
def test_h2o_keeps_all_six_and_the_official_mask_loses_most(late, executor, seed):
    text = late.Text.draw(LENGTH, K, DELAY, seed)
    ours = late.measure(text, H2O(), K, seed, executor)
    official = late.measure(text, H2OOfficialMask(), K, seed, executor)
    assert ours["kept"] == 6
    assert official["kept"] <= 1
    assert ours["attention"] > 0.7
    assert ours["error"] < 0.6
    assert official["error"] > 1


def test_executors_agree_on_every_policy(late):
    text = late.Text.draw(LENGTH, K, DELAY, seed=0)
    for policy in late.POLICIES:
        slow, fast = (late.measure(text, policy, K, 0, executor) for executor in ("reference", "numba"))
        assert fast == pytest.approx(slow, abs=1e-5), policy.name


def test_the_construction_is_what_it_says(late):
    for seed in SEEDS:
        text = late.Text.draw(LENGTH, K, DELAY, seed)
        attention = text.full_attention()[0, 0]
        assert len(set(text.needles.tolist())) == 6
        assert K <= text.needles.min() <= text.needles.max() < LENGTH - K
        for needle in text.needles.tolist():
            assert attention[needle : needle + DELAY, needle].max() < 1e-4
            assert attention[needle + DELAY :, needle].min() > 0.01
            assert attention[needle, needle] < attention[needle, :needle].min()


def test_the_official_mask_throws_a_needle_out_at_the_next_step(late):
    text = late.Text.draw(LENGTH, K, DELAY, seed=0)
    policy = H2OOfficialMask()
    state = LayerState.empty(policy, Caps.of(policy, [K]), text.keys, text.values)
    attend(text.queries, text.keys, text.values, state, scale=1.0)
    assert state.companion.evicted_at[0, 0, text.needles].tolist() == (text.needles + 1).tolist()


def test_beyond_the_window_h2o_loses_them_too(late):
    text = late.Text.draw(LENGTH, K, K // 2, seed=0)
    kept = {policy.name: late.measure(text, policy, K, 0)["kept"] for policy in late.POLICIES}
    assert (kept["h2o"], kept["h2o_mean"], kept["h2o_real_drop"]) == (0, 0, 0)
    assert (kept["global_h2"], kept["full"]) == (6, 6)


def test_the_experiment_records_its_result(main, late, capsys):
    folder = main("--seeds", "2")
    cell, samples = load(folder).iloc[0], load_samples(folder)
    assert (cell["status"], cell["task"], cell["model"], cell["k_max"]) == (
        "finished",
        "late_tokens",
        "constructed",
        K,
    )
    assert (cell["h2o.kept.min"], cell["h2o_official_mask.kept.max"], cell["local.kept.max"]) == (6, 0, 0)
    assert len(samples) == cell["samples"] == 2 * len(late.POLICIES)
    shown = capsys.readouterr().out
    for policy in late.POLICIES:
        assert policy.name in shown
    assert "6.0 (6 to 6)" in shown


def test_the_experiment_says_what_is_wrong(main, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr("h2o_lab.log.complain", said.append)
    cases = {
        "--seeds must be 1 or more": ("--seeds", "0"),
        "--budget-tokens must be 2 or more": ("--budget-tokens", "1"),
        "--length must be 134 or more": ("--length", "133"),
        "--delay must be 0 to 64": ("--delay", "65"),
    }
    for sentence, arguments in cases.items():
        with pytest.raises(SystemExit) as stopped:
            main(*arguments)
        assert stopped.value.code == 2
        assert sentence in said.pop()
