"""`python -m experiments.theory` on a tiny model: what it records, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from h2o_lab.results import load, load_samples
from h2o_lab.theory.summary import GUARANTEE
from tests.support.models import random_model
from tests.support.theory_cases import NAMES, causal

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """A tiny LLaMA in `llama`, and three long texts and a short one in `data`."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("theory")
    random_model("llama").save_pretrained(folder / "llama")
    words = {"<end>": 0} | {f"w{i}": i for i in range(1, 97)}
    tokenizer = Tokenizer(models.WordLevel(words, "<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder / "llama")
    texts = [
        " ".join(f"w{1 + (7 * i + j * j) % 96}" for j in range(length)) for i, length in enumerate((30, 9, 40, 30))
    ]
    (folder / "data" / "xsum").mkdir(parents=True)
    rows = "".join(json.dumps({"document": text, "summary": "none"}) + "\n" for text in texts)
    (folder / "data" / "xsum" / "validation.jsonl").write_text(rows)
    return folder


@pytest.fixture
def main(monkeypatch, workplace):
    """`experiments.theory.main` on the tiny model; returns the folder of results."""
    monkeypatch.syspath_prepend(str(ROOT))
    from experiments import theory

    monkeypatch.setattr("h2o_lab.log.set_up", lambda: None)  # global, and not to be undone
    threads = torch.get_num_threads()

    def run(name: str, *more: str) -> Path:
        places = {"--model-path": "llama", "--data-dir": "data", "--results-dir": name}
        given = [word for key, value in places.items() for word in (key, str(workplace / value))]
        small = {"--length": 24, "--sizes": 3, "--heavy": 4, "--spread": 3, "--triples": 50, "--caches": 4}
        given += [str(word) for pair in small.items() for word in pair]
        theory.main([*given, *more])
        return workplace / name

    yield run
    torch.set_num_threads(threads)


def test_the_experiment_records_its_result(main, capsys):
    folder = main("results", "--windows", "2", "--sizes", "1", "3")
    frame, samples = load(folder), load_samples(folder)
    assert len(frame) == 1
    cell = frame.iloc[0]
    assert (cell["status"], cell["task"], cell["model"], cell["seed"]) == ("finished", "theory", "llama", 0)
    assert cell["violations.coverage.checked"] == 2 * 3 * 6 * 50
    assert cell["violations.facility_location.submodular"] == 0
    assert cell["ratio.modular.k3.greedy.min"] == pytest.approx(1)
    assert cell["steps.accumulated.k4.fall.all.max"] == 0
    assert len(cell["steps.h2o.k4.ratio.per_layer.p50"]) == 3
    assert len(samples) == cell["samples"] == 2 * 3 * 6 * 3 * 2
    assert set(samples["objective"]) == set(NAMES)
    assert samples["greedy"].min() == cell["least_greedy_ratio"] > GUARANTEE
    assert samples["greedy"].max() < 1 + 1e-9
    assert (samples["worst_set"] <= samples["average_set"] + 1e-9).all()
    assert samples.groupby(["objective", "k"])["average_set"].std().min() > 0
    [record] = folder.rglob("result.json")
    assert json.loads(record.read_text())["environment"]["versions"]["torch"] == torch.__version__
    shown = capsys.readouterr().out
    assert "facility_location" in shown
    assert "violations in 5400 random triples" in shown


def test_the_same_seed_gives_the_same_samples(main):
    def lines(name: str, seed: int) -> str:
        [file] = main(name, "--windows", "1", "--seed", str(seed)).rglob("samples.jsonl")
        return file.read_text()

    assert lines("first", 1) == lines("second", 1) != lines("third", 2)


def test_every_head_draws_candidates_of_its_own(main, monkeypatch):
    from h2o_lab.theory import measure

    drawn, draw = [], measure.candidates

    def kept(*arguments):
        drawn.append(tuple(draw(*arguments).tolist()))
        return np.array(drawn[-1])

    monkeypatch.setattr(measure, "candidates", kept)
    monkeypatch.setattr("experiments.theory.attention_maps", lambda model, ids: np.stack([causal(6, 24, 1)] * 3))
    main("heads", "--windows", "2", "--heavy", "0", "--spread", "6")
    assert len(drawn) == 2 * 3 * 6
    assert len(set(drawn)) > 30


def test_the_experiment_says_what_is_wrong(main, workplace, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr("h2o_lab.log.complain", said.append)
    cases = {
        "only 3 articles have 24 tokens": ("--windows", "4"),
        "--sizes must be 1 to 7": ("--sizes", "8"),
        "--caches must be 2 to 23": ("--caches", "24"),
        "--length must be 7 or more": ("--length", "6"),
        "there is no split test": ("--split", "test"),
        "more than 1000000 subsets": ("--heavy", "22", "--spread", "2", "--sizes", "12"),
    }
    for sentence, arguments in cases.items():
        with pytest.raises(SystemExit) as stopped:
            main(f"failed {arguments[0]}", *arguments)
        assert stopped.value.code == 2
        assert sentence in said.pop()
    failed = load(workplace / "failed --windows").iloc[0]
    assert (failed["status"], failed["task"]) == ("failed", "theory")
    assert "only 3 articles" in failed["error"]
