"""What the tests of `h2o_lab.verify` share: results of all kinds, and copies that were changed."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from h2o_lab import compute
from h2o_lab.plan.cells import planned
from h2o_lab.results import open_result
from tests.support.furnished import furnish, small

STREAM = ["task=text", "task.path={}/book.txt", "task.mode=streaming", "task.chunk=32", "task.every=50"]
WINDOWS = ["task=text", "task.path={}/book.txt"]
LM_EVAL = ["task=lm_eval", "task.name=asks", "task.num_fewshot=0", "budget=0.5"]
CELLS = {
    "questions": ["task.num_fewshot=2", "policy=h2o", "budget=0.3", "task.limit=16"],
    "all questions": ["task.num_fewshot=2", "policy=full", "task.limit=null"],
    "questions with contexts that differ": ["task=winogrande", "task.num_fewshot=1", "policy=h2o", "budget=0.4"],
    "lm-eval's log-likelihoods": [*LM_EVAL, "task.include_path={}/loglikelihood"],
    "lm-eval's rolling texts": [*LM_EVAL, "task.include_path={}/loglikelihood_rolling"],
    "lm-eval's texts": [*LM_EVAL, "task.include_path={}/generate_until"],
    "summaries that are drawn": [
        *["task=xsum", "task.num_fewshot=1", "prefill=full", "policy=h2o", "budget=0.5", "task.max_new_tokens=8"]
    ],
    "a fact at several depths": [
        *["task=needle", "task.size=60", "task.limit=4", "task.depths=[0,0.5,1]", "policy=streaming", "budget=0.5"]
    ],
    "pairs that are drawn": ["task=kv_retrieval", "data=packaged", "data.dir=null", "task.size=2", "policy=full"],
    "windows": [*WINDOWS, "task.window=80", "policy=h2o", "budget=0.2"],
    "windows that overlap": [*WINDOWS, "task.window=80", "task.stride=30", "policy=fixed", "budget=0.3"],
    "windows of a part": [*WINDOWS, "task.window=80", "task.tokens=250", "policy=h2o", "budget=0.2"],
    "a stream with a share of its tokens": [*STREAM, "policy=h2o", "budget=0.3"],
    "a stream with a pattern": [*STREAM, "policy=strided", "budget=0.3"],
    "a stream with another pattern": [*STREAM, "policy=fixed_h2", "budget=0.3"],
    "a stream with a pattern of its own": [*STREAM, "policy=strided", "budget=0.3", "policy.stride=7"],
    "a stream with a number of tokens": [*STREAM, "policy=strided", "budget_tokens=60"],
    "a stream that keeps everything": [*STREAM, "policy=full"],
    "a stream behind a prompt in full": [*STREAM, "policy=h2o", "budget=0.3", "prefill=full", "task.tokens=400"],
    "a short stream": [*STREAM, "policy=h2o", "budget=0.3", "task.tokens=120"],
}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """A furnished folder."""
    return furnish(tmp_path_factory.mktemp("verify"))


def store(words: list[str], folder: Path) -> Path:
    """Compute the one cell of these overrides into a folder, as a run does."""
    (cell,) = planned(words)
    compute.compute(cell.cfg, cell.plan, open_result(folder), words, "group", "name")
    return folder


@pytest.fixture(scope="module")
def computed(workplace):
    """The folder of a cell of `CELLS`, computed once."""

    def folder(case: str) -> Path:
        place = workplace / "results" / case.replace(" ", "_")
        return place if place.exists() else store(small(workplace, *CELLS[case]), place)

    return folder


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


@pytest.fixture
def changed(computed, tmp_path):
    """A copy of the questions' result whose samples, record or configuration were changed by a function."""

    def copy(file: str, change) -> Path:
        folder = shutil.copytree(computed("questions"), tmp_path / "copy")
        place = folder / file
        if file == "samples.jsonl":
            samples = lines(folder)
            change(samples)
            place.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
        else:
            read, write = (yaml.safe_load, yaml.safe_dump) if file == "config.yaml" else (json.loads, json.dumps)
            content = read(place.read_text())
            change(content)
            place.write_text(write(content))
        return folder

    return copy


def scaled(sample: int, by: float):
    def change(samples):
        samples[sample]["choices"][1]["logprob"] *= by

    return change
