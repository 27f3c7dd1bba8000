"""Launchers and sweepers of Hydra: cells in other processes, or chosen as they go, with the same results."""

import json
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf

from h2o_lab import sweep
from h2o_lab.config import config_dir, register, threads, workers
from h2o_lab.errors import UserError
from h2o_lab.results import load, load_samples
from h2o_lab.results.callback import SweepSummary
from h2o_lab.search import shortfall
from tests.support.command_line import command, run, surroundings, workplace

__all__ = ["workplace"]  # a fixture

EXTRAS = {
    "h2o_joblib": "joblib",
    "h2o_submitit_local": "submitit",
    "h2o_slurm": "submitit",
    "h2o_ray": "ray",
    "h2o_optuna": "optuna",
}
SWEEP = ("-m", "policy=h2o", "budget=0.2,0.4,0.6")
WIDTH = {"h2o_joblib": "hydra.launcher.n_jobs=2", "h2o_submitit_local": "hydra.sweeper.max_batch_size=3"}


def needs(preset: str) -> None:
    """Skip the test where the plugin behind a preset is not installed."""
    target = OmegaConf.load(file_of(preset)).get("launcher", OmegaConf.load(file_of(preset)))["_target_"]
    if find_spec("hydra_plugins") is None or find_spec(".".join(target.split(".")[:2])) is None:
        pytest.skip(f"{preset} needs pip install 'h2o_lab[{EXTRAS[preset]}]'")


def file_of(preset: str) -> Path:
    kind = "sweeper" if preset == "h2o_optuna" else "launcher"
    return config_dir() / "hydra" / kind / f"{preset}.yaml"


@pytest.fixture(scope="module")
def expected(workplace):
    """What the sweep gives in one process: one row per cell, and the samples."""
    done = run(workplace, *SWEEP, "results_dir=basic")
    assert done.returncode == 0, done.stderr
    return results(workplace / "basic")


def results(folder: Path):
    """What must not depend on where cells are computed: one row per cell, and one per sample."""
    frame = load(folder)
    same = ["policy", "budget", "status", "acc", "acc_stderr", "acc_norm", "acc_token_mean", "k_mean", "cell"]
    same += ["kv_bytes.resident_mean", "kv_bytes.reserved_max", "tokens.computed", "samples"]
    cells = frame[same].sort_values(["policy", "budget"], ignore_index=True)
    samples = load_samples(folder).drop(columns="path")
    return cells, samples.sort_values(["policy", "budget"], kind="stable", ignore_index=True)


@pytest.mark.parametrize("launcher", ["h2o_joblib", "h2o_submitit_local", "h2o_ray"])
def test_a_sweep_gives_the_same_on_every_launcher(workplace, expected, launcher):
    needs(launcher)
    width = WIDTH.get(launcher, "seed=0")
    done = run(workplace, *SWEEP, f"hydra/launcher={launcher}", f"results_dir={launcher}", width)
    assert done.returncode == 0, done.stderr
    assert "3 cells, 0 without a result" in done.stdout
    cells, samples = results(workplace / launcher)
    assert len(cells) == 3
    assert len(samples) == 3 * 5
    assert cells.equals(expected[0])
    assert samples.equals(expected[1])
    if launcher == "h2o_joblib":
        assert 1 <= done.stderr.count("loaded llama on") <= 2  # once a worker, not once a cell


def test_a_failing_cell_in_another_process_is_recorded_and_counts(workplace, monkeypatch):
    needs("h2o_joblib")
    for variable in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        monkeypatch.delenv(variable, raising=False)
    overrides = ("policy=h2o", "budget=0.5", "model.path=opt", "task.num_fewshot=0,6", "results_dir=broken_there")
    code, shown, said = on_a_terminal(
        workplace, "-m", *overrides, "hydra/launcher=h2o_joblib", "hydra.launcher.n_jobs=2"
    )
    assert code == 1
    assert "2 cells, 1 without a result" in shown
    assert "use fewer task.num_fewshot" in " ".join(said.split())
    assert "\x1b[2K" not in said  # a line erased: a worker's progress bar
    frame = load(workplace / "broken_there").set_index("status")
    assert set(frame.index) == {"finished", "failed"}
    assert "use fewer task.num_fewshot" in frame.loc["failed", "error"]
    assert frame.loc["finished", "environment.threads.torch"] == threads(2)
    assert not list((workplace / "broken_there").rglob(".failed"))


def on_a_terminal(folder: Path, *overrides: str) -> tuple[int, str, str]:
    """A run whose standard error is a terminal: exit code, standard output, standard error."""
    ours, theirs = os.openpty()
    with subprocess.Popen(
        command(*overrides), cwd=folder, env=surroundings(folder), stdout=subprocess.PIPE, stderr=theirs, text=True
    ) as process:
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 4096):
                said += part
        except OSError:  # nobody writes to it any more
            pass
        assert process.stdout is not None
        shown = process.stdout.read()
    os.close(ours)
    return process.returncode, shown, said.decode()


def test_a_search_finds_the_smallest_budget_that_is_good_enough(workplace):
    needs("h2o_optuna")
    words = ("+experiment=smallest_budget", "hydra.sweeper.n_trials=3", "results_dir=search")
    done = run(workplace, "-m", *words)
    assert done.returncode == 0, done.stderr
    assert "hydra/sweeper=h2o_optuna chooses cells as it goes" in done.stderr
    assert "3 cells, 0 without a result" in done.stdout
    (folder,) = (workplace / "search").glob("2*")
    found = yaml.safe_load((folder / "optimization_results.yaml").read_text())
    trials = [json.loads((folder / str(i) / "result.json").read_text()) for i in range(3)]
    full = json.loads((folder / "0" / "full" / "result.json").read_text())
    assert full["policy"] == "full"
    values = [shortfall(trial, full, 0.02) for trial in trials]
    assert found["best_value"] == min(values)
    assert found["best_params"]["budget"] == trials[values.index(min(values))]["budget"]
    assert f"Best: budget={found['best_params']['budget']}" in done.stdout
    frame = load(workplace / "search")
    assert (frame.policy == "full").sum() == 1  # computed once


def test_a_trial_that_cannot_even_begin_is_recorded_and_the_others_go_on(workplace):
    needs("h2o_optuna")
    needs("h2o_joblib")
    words = ("hydra/sweeper=h2o_optuna", "hydra.sweeper.n_trials=4", "hydra.sweeper.n_jobs=4", "results_dir=trials")
    parallel = ("hydra/launcher=h2o_joblib", "hydra.launcher.n_jobs=2")
    done = run(workplace, "-m", *words, *parallel, "budget=choice(0.5,1.5)")
    assert done.returncode == 1, done.stderr
    frame = load(workplace / "trials")
    bad = frame[frame.status == "failed"]
    assert 0 < len(bad) < 4
    assert set(bad.budget) == {1.5}
    assert bad.error.str.contains("budget=1.5 is out of range").all()
    assert f"4 cells, {len(bad)} without a result" in done.stdout
    assert "Best: budget=0.5, value" in done.stdout


# --- without a run


def test_a_failure_counts_in_whatever_process_it_is_noticed(tmp_path, caplog):
    config = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}, "mode": "MULTIRUN", "job": {"num": 0}}})
    failed = JobReturn(status=JobStatus.COMPLETED)
    failed.return_value = None
    there, here = SweepSummary(), SweepSummary()
    here.on_multirun_start(config)
    there.on_job_end(config, failed)
    with pytest.raises(SystemExit, match="1"):
        here.on_multirun_end(config)
    again = SweepSummary()
    again.on_multirun_start(config)
    again.on_multirun_end(config)
    assert "No result.json" in caplog.text


def test_a_missing_plugin_is_one_sentence_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(sweep.EXTRAS, "hydra_absent_launcher", "absent")
    basic = {"_target_": "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"}
    choices = {"hydra/launcher": "h2o_absent", "hydra/sweeper": "basic"}
    absent = {"_target_": "hydra_plugins.hydra_absent_launcher.absent.AbsentLauncher"}
    hydra = OmegaConf.create({"launcher": absent, "sweeper": basic, "runtime": {"choices": choices}})
    with pytest.raises(UserError, match=r"hydra/launcher=h2o_absent needs.*pip install 'h2o_lab\[absent\]'"):
        sweep.check_plugins(hydra)
    hydra.launcher = {"_target_": "hydra._internal.core_plugins.basic_launcher.BasicLauncher"}
    sweep.check_plugins(hydra)


def test_slurm_without_a_cluster_is_one_sentence(monkeypatch):
    needs("h2o_slurm")
    hydra = OmegaConf.load(file_of("h2o_slurm"))
    hydra.merge_with({"sweeper": {}, "runtime": {"choices": {"hydra/launcher": "h2o_slurm"}}})
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match=r"hydra/launcher=h2o_slurm needs SLURM, and there is no srun here"):
        sweep.check_plugins(hydra)


@pytest.mark.parametrize(("asked", "expected"), [(None, (4, "4")), (8, (8, "2")), (64, (64, "1"))])
def test_submitit_starts_no_more_cells_at_once_than_there_are_cores_for(monkeypatch, asked, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setenv("NUMBA_NUM_THREADS", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.delenv("OMP_NUM_THREADS")
    sweeper = OmegaConf.create({"max_batch_size": asked})
    sweep.share_machine(sweeper)
    assert (sweeper.max_batch_size, os.environ["OMP_NUM_THREADS"]) == expected
    assert os.environ["NUMBA_NUM_THREADS"] == "1"  # what the user says stays


@pytest.mark.parametrize("preset", EXTRAS)
def test_a_preset_says_nothing_that_its_plugin_does_not_know(preset):
    needs(preset)
    names = {"h2o_joblib": "joblib", "h2o_submitit_local": "submitit_local", "h2o_slurm": "submitit_slurm"}
    name = names.get(preset, preset.removeprefix("h2o_"))
    Plugins.instance()
    kind = file_of(preset).parent.name
    known = OmegaConf.structured(ConfigStore.instance().load(f"hydra/{kind}/{name}.yaml").node)
    given = OmegaConf.load(file_of(preset))
    given = given.get("launcher", given)
    assert given["_target_"] == known._target_
    assert set(given) <= set(known)
    assert set(given) & {"n_jobs", "gpus_per_node", "ray", "n_trials"}


def test_a_range_without_steps_needs_a_sweeper_that_searches():
    with pytest.raises(UserError, match=r"budget=interval\(0.1,1\) is no list of values.*h2o_optuna"):
        sweep.cells(["policy=h2o", "budget=interval(0.1,1)"], None)
    assert sweep.cells(["budget=choice(0.1,1)"], None) == [["budget=0.1"], ["budget=1"]]


@pytest.mark.parametrize(("cores", "expected"), [(1, (1, 1)), (2, (2, 1)), (6, (4, 1)), (16, (4, 4))])
def test_workers_share_the_cores(monkeypatch, cores, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    assert (workers(4), threads(4)) == expected


@pytest.mark.parametrize(
    ("metric", "value", "full", "expected"),
    [
        ("acc", 0.60, 0.60, 0.25),
        ("acc", 0.58, 0.60, 0.25),
        ("acc", 0.57, 0.60, 1.01),
        ("acc", 0.90, 0.60, 0.25),
        ("perplexity", 12.01, 12.0, 0.25),
        ("perplexity", 12.05, 12.0, 1.03),
        ("perplexity", 11.0, 12.0, 0.25),
    ],
)
def test_a_search_minimises_what_is_kept_or_else_what_is_missing(metric, value, full, expected):
    record = {"main_metric": metric, "metrics": {metric: value}, "k": {"mean": 25.0}}
    whole = {"main_metric": metric, "metrics": {metric: full}, "k": {"mean": 100.0}}
    assert shortfall(record, whole, within=0.02) == pytest.approx(expected)


def test_the_debug_preset_is_small_and_leaves_the_task_to_the_command_line():
    register()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        for task in ("piqa", "wikitext", "needle", "xsum"):
            cfg = compose("config", ["+experiment=debug", f"task={task}"])
            assert (cfg.task.name, cfg.task.limit, cfg.tracker.name) == (task, 2, "none")
            assert cfg.budget == 0.2
