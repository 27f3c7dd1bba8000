"""A model whose heads are shared by two processes, as torchrun starts them, computes what a whole one does."""

import json
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import torch
from omegaconf import OmegaConf

from h2o_lab import sweep
from h2o_lab.attention import EvictionCache
from h2o_lab.attention.share import HeadShare
from h2o_lab.cells import Echo
from h2o_lab.checks import check
from h2o_lab.config import Config, DataConfig, HarnessConfig, ModelConfig, TrackerConfig
from h2o_lab.errors import UserError
from h2o_lab.policies import H2O, Random
from h2o_lab.results import load, load_samples
from tests.support.command_line import command, surroundings, workplace
from tests.support.models import shared

__all__ = ["workplace"]  # a fixture

SECONDS = 180
"""Most that one command may take."""
GRID = ("-m", "policy=full,local,h2o,random", "budget=0.3")
CIRCUMSTANCES = ("started", "finished", "seconds", "tokens_per_second", "peak_memory_bytes", "environment")
CIRCUMSTANCES += ("cell", "overrides")
BROKEN = """
import os
from dataclasses import dataclass
from typing import ClassVar

from h2o_lab import parallel
from h2o_lab.errors import UserError
from h2o_lab.policies import Policy, Priority

parallel.PATIENCE = 1.0


@dataclass(frozen=True, kw_only=True)
class Broken(Policy):
    name: ClassVar[str] = "broken"
    priority: Priority = Priority.STATIC
    sink_tokens: int = 2
    recent_fraction: float | None = 0.25
    only: str | None = None

    def static_priority(self, positions, keys, layer, seed):
        if layer == 3 and self.only in (None, os.environ["RANK"]):
            raise UserError("this policy is broken.")
        return -keys.float().norm(dim=-1)
"""


def words(*overrides: str) -> list[str]:
    """The command; the plain executor spares each process the compilation of a kernel."""
    model = f"model.path={shared('models', 'stories260K')}"
    return command(*overrides, "model=local", model, "data=folder", "data.dir=data", "executor=reference")


def torchrun(*overrides: str) -> list[str]:
    """The command, with the model shared by two processes."""
    python, *rest = words(*overrides, "model.tp_plan=auto")
    return [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *rest]


def done(folder: Path, line: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        line,
        cwd=folder,
        env=surroundings(folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )


@pytest.fixture(scope="module")
def sweeps(workplace):
    """The grid, shared by two processes and in one."""
    shared_by_two = done(workplace, torchrun(*GRID, "results_dir=two"))
    assert shared_by_two.returncode == 0, shared_by_two.stderr
    alone = done(workplace, words(*GRID, "results_dir=one"))
    assert alone.returncode == 0, alone.stderr
    return shared_by_two, workplace


def records(folder: Path) -> dict[str, tuple[dict, list]]:
    """By policy, what a record says apart from times and places, and its samples."""
    found = {}
    for file in folder.glob("2*/*/result.json"):
        record = json.loads(file.read_text())
        lines = (file.parent / "samples.jsonl").read_text().splitlines()
        told = {key: value for key, value in record.items() if key not in CIRCUMSTANCES}
        found[record["policy"]] = told, [json.loads(line) for line in lines]
    return found


def logprobs(samples: list[dict]) -> torch.Tensor:
    """Of all choices, which the samples then lack."""
    return torch.tensor([choice.pop("logprob") for sample in samples for choice in sample["choices"]])


def test_two_processes_that_share_a_model_record_what_one_does(sweeps):
    shared_by_two, folder = sweeps
    assert "4 cells, 0 without a result" in shared_by_two.stdout
    assert shared_by_two.stdout.count("cells, ") == 1
    assert shared_by_two.stderr.count("loaded") == 1  # the second process is silent
    two, one = records(folder / "two"), records(folder / "one")
    assert set(two) == set(one) == {"full", "local", "h2o", "random"}
    for policy, (record, samples) in two.items():
        expected, expected_samples = one[policy]
        assert record == expected, policy
        torch.testing.assert_close(logprobs(samples), logprobs(expected_samples), rtol=1e-5, atol=1e-4)
        assert samples == expected_samples, policy
    frame = load(folder / "two")
    assert set(frame["environment.processes"]) == {2}
    assert not set(frame.cell) & set(load(folder / "one").cell)  # their last digits differ


@pytest.fixture
def broken(workplace):
    """Overrides that know a policy which raises an error, in all processes or in one."""
    (workplace / "broken.py").write_text(BROKEN)
    place = workplace / "my_conf" / "policy"
    place.mkdir(parents=True, exist_ok=True)
    (place / "broken.yaml").write_text("_target_: broken.Broken\nonly: null\n")
    return f"hydra.searchpath=[file://{workplace / 'my_conf'}]"


def test_a_second_start_takes_over_what_is_finished_and_goes_on_behind_a_failure(sweeps, broken):
    _, folder = sweeps
    policies = "policy=full,local,h2o,random,broken,streaming"
    again = done(folder, torchrun("-m", broken, policies, *GRID[2:], "results_dir=two"))
    assert again.returncode != 0
    assert "6 cells, 1 without a result, 4 found finished" in again.stdout
    frame = load(folder / "two").set_index("policy")
    assert (frame.status == "failed").to_dict() == {name: name == "broken" for name in frame.index}
    assert frame.loc["broken", "error"] == "this policy is broken."


def test_a_cell_that_fails_in_one_process_ends_the_command(workplace, broken):
    words = ("policy=broken", "policy.only='1'", "budget=0.3", "results_dir=parted")
    ended = done(workplace, torchrun("-m", broken, *words))
    assert ended.returncode != 0
    said = " ".join(ended.stderr.split())
    assert "UserError in process 1: this policy is broken. The processes that share a model go on together" in said


def test_a_killed_process_ends_the_command_and_a_new_start_goes_on(workplace):
    slow = ("policy=h2o", "budget=0.5", "task.limit=8", "task.batch_tokens=128")
    line = torchrun(*slow, "results_dir=killed")
    process = subprocess.Popen(line, cwd=workplace, env=surroundings(workplace), stderr=subprocess.DEVNULL)
    try:
        deadline, noted = time.monotonic() + SECONDS, 0
        while noted < 3 and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.02)
            journals = (workplace / "killed").glob(".cells/*/journal.jsonl")
            noted = sum(file.read_bytes().count(b"\n") for file in journals)
        workers = [child for child in psutil.Process(process.pid).children() if "RANK" in child.environ()]
        second = next(worker for worker in workers if worker.environ()["RANK"] == "1")
        second.kill()
        assert process.wait(SECONDS) != 0
    finally:
        process.kill()
    assert not psutil.wait_procs(workers, timeout=10)[1]
    again = done(workplace, line)
    assert again.returncode == 0, again.stderr
    frame = load(workplace / "killed")
    assert frame[frame.status == "finished"].resumed_batches.tolist()[0] >= 3
    assert len(load_samples(workplace / "killed")) == 8


# --- without torchrun


def asked(folder: Path, model: str, policy: dict | None = None, **placement: str) -> Config:
    return Config(
        model=ModelConfig(model, "local", path=str(folder / model), **placement),
        task=HarnessConfig(name="piqa", num_fewshot=1),
        data=DataConfig("folder", str(folder / "data")),
        tracker=TrackerConfig("none"),
        policy=policy or {"_target_": "h2o_lab.policies.H2O"},
        budget=0.3,
    )


@pytest.fixture
def started(monkeypatch):
    """Pretend that torchrun has started so many processes."""

    def start(processes: int) -> None:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
        for name, value in {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "RANK": 0}.items():
            monkeypatch.setenv(name, str(value))

    return start


TP = {"tp_plan": "auto"}
LAYER = {"_target_": "h2o_lab.policies.H2O", "scope": "layer"}
REFUSED = {
    "no torchrun": (1, "llama", TP, None, "model.tp_plan=auto splits a model over several processes, and this is"),
    "no plan": (
        2,
        "llama",
        {},
        None,
        "torchrun started 2 processes, and with model.tp_plan=null there is work for",
    ),
    "unknown": (2, "llama", {"tp_plan": "rows"}, None, "model.tp_plan=rows is unknown: allowed are auto and null"),
    "device": (2, "llama", TP | {"device": "cpu"}, None, "model.device=cpu and model.tp_plan=auto exclude each"),
    "device_map": (2, "llama", TP | {"device_map": "auto"}, None, "model.device_map=auto and model.tp_plan=auto"),
    "OPT": (2, "opt", TP, None, "model.tp_plan=auto is impossible with opt: transformers has no plan"),
    "three": (3, "llama", TP, None, "torchrun started 3 processes, which cannot share the model's 2 KV heads"),
    "scope": (2, "llama", TP, LAYER, "policy=h2o has scope=layer: it sums scores over heads"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_shared_is_one_sentence(workplace, started, case):
    processes, model, placement, policy, message = REFUSED[case]
    if processes > 1:
        started(processes)
    with pytest.raises(UserError, match=message):
        check(asked(workplace, model, policy, **placement))


def test_a_model_with_a_plan_is_accepted(workplace, started):
    started(2)
    assert check(asked(workplace, "llama", tp_plan="auto")).policy == H2O()


def test_a_launcher_beside_torchrun_is_one_sentence(started):
    started(2)
    hydra = OmegaConf.create({"sweeper": {}, "runtime": {"choices": {"hydra/launcher": "own"}}})
    hydra.launcher = {"_target_": "h2o_lab.some.BasicLauncher"}
    sweep.check_plugins(hydra)
    hydra.launcher["_target_"] = "h2o_lab.some.OtherLauncher"
    with pytest.raises(UserError, match="hydra/launcher=own starts processes of its own, and so does torchrun"):
        sweep.check_plugins(hydra)


def test_the_shares_of_two_processes_are_the_whole():
    """Draws of `random` by a head's number in the whole model, and the bytes of all heads."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 12, 8) for heads in (8, 4, 4))
    whole = held(q, k, v, HeadShare())
    parts = zip(q.chunk(2, dim=1), k.chunk(2, dim=1), v.chunk(2, dim=1), strict=True)
    halves = [held(*part, HeadShare(index, 2)) for index, part in enumerate(parts)]
    positions = torch.cat([half.states[0].positions for half in halves], dim=1)
    assert torch.equal(positions.sort().values, whole.states[0].positions.sort().values)
    for half in halves:
        assert torch.equal(half.kv_bytes_resident, whole.kv_bytes_resident)
        assert (half.kv_bytes_reserved, half.kv_bytes_peak) == (whole.kv_bytes_reserved, whole.kv_bytes_peak)
        assert half.fork().share == half.share


def held(q, k, v, share: HeadShare) -> EvictionCache:
    """A cache of one layer that has read these tokens."""
    cache = EvictionCache(1, Random(), 5, prefill="full", share=share)
    cache.evicting[0].attend(q, k, v, 1.0, None)
    return cache


def test_an_echo_recalls_what_the_first_process_does():
    echo = Echo({"a": 1})
    echo.note("b", {"x": 2})
    assert (echo.recall("a"), echo.recall("b"), echo.recall("c"), len(echo)) == (1, {"x": 2}, None, 2)
    assert echo.beside("file") is None
