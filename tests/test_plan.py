"""`python -m h2o_lab.plan`: what is predicted is what a run then takes."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
import torch
from conftest import random_model
from hydra.errors import HydraException
from rich.console import Console
from test_run import character_tokenizer, surroundings
from test_tasks import KINDS, own_task

from h2o_lab.cells import Cell, Journal
from h2o_lab.compute import run_cell, task_data
from h2o_lab.config import ModelConfig
from h2o_lab.errors import UserError
from h2o_lab.memory import kv_bytes
from h2o_lab.plan import device, planner
from h2o_lab.plan.cells import planned
from h2o_lab.plan.cost import slots
from h2o_lab.plan.planner import plan
from h2o_lab.plan.speed import Speed
from h2o_lab.plan.table import count, duration, plan_table, size
from h2o_lab.results import open_result

WORDS = ("the river runs to the sea", "and the road is long", "while a bird sits in", "the old tree again")


def furnish(folder: Path) -> Path:
    """Put models `llama` and `opt`, rows in `data`, a text and tasks of one's own into a folder."""
    for family in ("llama", "opt"):
        model = random_model(family)
        model.generation_config.eos_token_id = None
        model.save_pretrained(folder / family)
        character_tokenizer().save_pretrained(folder / family)
    goals = [" ".join([*WORDS, *WORDS])[i % 19 : i % 19 + 12 + 5 * (i % 7)] for i in range(24)]
    rows = {
        "piqa": [
            {"goal": goal, "sol1": goal[:4], "sol2": f"{goal[:4]} {i}", "label": i % 2}
            for i, goal in enumerate(goals)
        ],
        "winogrande": [
            {"sentence": f"{goal} as _ was rich.", "option1": "Ann", "option2": "Robert", "answer": "1"}
            for goal in goals
        ],
        "xsum": [{"document": goal, "summary": goal[:9], "id": str(i)} for i, goal in enumerate(goals)],
    }
    for name, part in rows.items():
        (folder / "data" / name).mkdir(parents=True)
        lines = "".join(json.dumps(row) + "\n" for row in part)
        (folder / "data" / name / "validation.jsonl").write_text(lines)
    (folder / "book.txt").write_text(" ".join(WORDS * 6))
    for kind, fields in KINDS.items():
        (folder / kind).mkdir()
        own_task(folder / kind, **fields)
    return folder


def small(folder: Path, *overrides: str) -> list[str]:
    """Overrides on the small model and data of a furnished folder; `{}` in one stands for the folder."""
    defaults = {
        "model": "local",
        "model.path": f"{folder}/llama",
        "data": "folder",
        "data.dir": f"{folder}/data",
        "task.limit": "8",
        "tracker": "none",
        "results_dir": f"{folder}/results",
    }
    said = {override.partition("=")[0] for override in overrides}
    words = [override.replace("{}", str(folder)) for override in overrides]
    return [*words, *(f"{key}={value}" for key, value in defaults.items() if key not in said)]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """A furnished folder."""
    return furnish(tmp_path_factory.mktemp("plan"))


@pytest.fixture
def given(workplace):
    """Overrides on the small model and data."""
    return partial(small, workplace)


def ran(cell) -> tuple[dict, list[dict]]:
    """The record and the samples of a cell that is really run."""
    data = task_data(*cell.described[1:])[0]
    return run_cell(cell.cfg, cell.plan, data, Journal(), {})[:2]


PIQA = ["task.num_fewshot=1", "task.batch_tokens=128"]
FIXED = ["task.fewshot=fixed", "task.num_fewshot=2", "task.batch_tokens=512"]
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
ASKED = {
    "xsum": ["task=xsum", "task.stop=[]", "task.temperature=0", "task.max_new_tokens=9", "task.batch_tokens=300"],
    "needle": ["task=needle", "task.size=60", "task.max_new_tokens=5", "task.limit=2", "task.batch_tokens=800"],
    "lm-eval": [
        *["task=lm_eval", "task.name=asks", "task.include_path={}/generate_until", "task.num_fewshot=0"],
    ],
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


# Cells


def test_cells_are_told_apart_as_the_run_does_it(workplace, given):
    words = given(*PIQA, "policy=full,h2o", "budget=0.2,0.5", f"results_dir={workplace}/known")
    full, again, small, large = planned(words)
    assert [cell.state for cell in (full, again, small, large)] == ["to do", "as cell 1", "to do", "to do"]
    assert {"policy=h2o", "budget=0.2"} <= set(small.overrides)
    cell = Cell(workplace / "known", small.name)
    result = open_result(workplace / "known" / "0")
    with cell.claimed():
        cell.begin(result)
        result.write_samples([])
        result.finish({"cell": small.name})
    assert [cell.state for cell in planned(words)] == ["to do", "as cell 1", "finished", "to do"]
    assert [cell.state for cell in planned([*words, "resume=false"])] == ["to do"] * 4
    lines = plan(words)
    assert lines[0].cost == lines[1].cost != lines[2].cost


def test_the_cells_of_an_experiment_are_those_that_it_names(given, tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nseed: 7\nhydra:\n  sweeper:\n    params:\n      task: needle,kv_retrieval\n"
        "      policy: full,h2o,local\n      budget: 0.1,0.2\n"
    )
    cells = planned(
        given(f"hydra.searchpath=[file://{tmp_path}]", "+experiment=mine", "data=packaged", "data.dir=null")
    )
    assert len(cells) == 2 * 3 * 2
    assert {cell.cfg.task.name for cell in cells} == {"needle", "kv_retrieval"}
    assert {cell.plan.policy.name for cell in cells} == {"full", "h2o", "local"}
    assert {(cell.cfg.budget, cell.cfg.seed) for cell in cells} == {(0.1, 7), (0.2, 7)}
    assert [cell.state for cell in cells].count("to do") == 2 * (1 + 2 * 2)


def test_a_sweeper_that_searches_cannot_be_planned(given):
    with pytest.raises(UserError, match="hydra/sweeper=basic chooses its cells as it goes"):
        planned(given("budget=0.2", "hydra.sweeper._target_=some.Searcher"))


BAD = {
    "a budget": (["budget=0.2,1.5"], UserError, r"budget=1.5 is out of range.*\(cell .*budget=1.5"),
    "a policy": (["policy=h20", "budget=0.2"], HydraException, "Could not find 'policy/h20'"),
    "a key": (["bugdet=0.2"], HydraException, "Could not override 'bugdet'"),
    "an override": (["budget=[0.2"], HydraException, "."),
    "a long question": (
        ["budget=0.2", "model.path={}/opt", "task.num_fewshot=5"],
        UserError,
        r"the model's position table has 256.*\(cell budget=0.2",
    ),
    "a long prompt": (
        ["task=needle", "task.size=500", "budget=0.2", "model.path={}/opt"],
        UserError,
        "positions and the model's table has 256",
    ),
    "a long window": (
        ["task=text", "task.path={}/book.txt", "task.window=400", "budget=0.2", "model.path={}/opt"],
        UserError,
        "positions and the model's table has 256",
    ),
    "a short text": (
        ["task=text", "task.path={}/book.txt", "task.tokens=2", "task.limit=1", "task.title=none", "budget=0.2"],
        UserError,
        "task.title=none is in no title",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_as_by_the_run(given, case):
    words, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        plan(given(*words))


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


@pytest.fixture
def measurements(monkeypatch):
    """What is measured, instead of measuring it."""
    made = []

    def measured(work, cfg, plan, loaded):
        made.append((loaded, plan.policy.name, cfg.budget))
        return Speed(100.0, 0.5)

    monkeypatch.setattr(planner, "load_model", lambda cfg: Path(cfg.path).name)
    monkeypatch.setattr(planner, "measured", measured)
    return made


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


# The table


def shown(lines) -> str:
    """The table as text."""
    console = Console(width=200, record=True, file=StringIO())
    console.print(plan_table(lines))
    return console.export_text()


def test_the_table_says_what_is_to_be_done(given, measurements):
    words = given(*PIQA, "policy=full,h2o", "budget=0.2,0.5")
    lines = plan(words, 4, calibrate=True)
    lines[3] = replace(lines[3], cell=replace(lines[3].cell, state="finished"))
    said = " ".join(shown(lines).split())
    to_do = [lines[0], lines[2]]
    assert "│ policy=h2o budget=0.2 │ to do │" in said
    assert "│ policy=full budget=0.5 │ as cell 1 │" in said
    assert f"│ to do │ 2 of 4 │ 16 │ {count(sum(line.cost.tokens for line in to_do))} │" in said
    assert f"{duration(sum(line.seconds for line in to_do))} │ └" in said
    assert f"≈ {count(lines[0].cost.tokens)}" in said
    for word in ("≈: scaled from the first samples", "finished: below results_dir", size(lines[2].cost.kv_max)):
        assert word in said
    assert "counted at their longest" not in said


def test_sizes_and_times_are_told_in_readable_units():
    assert [size(number) for number in (512, 2**20, 1.5 * 2**30, 3000 * 2**30)] == [
        "0.5 KiB",
        "1.0 MiB",
        "1.5 GiB",
        "3,000.0 GiB",
    ]
    assert [duration(seconds) for seconds in (0.2, 59, 61, 3599, 7265)] == [
        "1 s",
        "59 s",
        "1:01 min",
        "59:59 min",
        "2:01:05 h",
    ]


# The command


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "h2o_lab.plan", *words],
        cwd=folder,
        env=surroundings(folder),
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_shows_a_plan_and_writes_nothing(workplace, given, tmp_path):
    words = given("-m", "policy=full,h2o", "budget=0.2", "task.num_fewshot=1")
    words = [word for word in words if not word.startswith("results_dir")]
    done = command(tmp_path, *words, "results_dir=results", "--samples", "3")
    assert done.returncode == 0, done.stderr
    assert "policy=h2o" in done.stdout
    assert "2 of 2" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["policy=h20", "budget=0.2"], "error: In 'config': Could not find 'policy/h20' Available options in"),
        (["--samples", "0", "budget=0.2"], "error: --samples=0 is out of range: it must be 1 or more."),
    ],
)
def test_the_command_refuses_bad_input_in_one_sentence(workplace, given, words, said):
    done = command(workplace, "--no-calibrate", *given(*words))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 1
