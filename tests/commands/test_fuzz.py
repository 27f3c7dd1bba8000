"""Bad input of every kind: each gets a sentence, none a traceback or a wrong number."""

import json
import math

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf.errors import OmegaConfBaseException

from h2o_lab.checks import check
from h2o_lab.config import DataConfig, config_dir, register
from h2o_lab.data import load_documents, load_rows
from h2o_lab.data.schema import DATASETS
from h2o_lab.data.texts import load_texts
from h2o_lab.errors import UserError
from h2o_lab.results import load, load_samples, open_result, sweep_table
from tests.support.models import character_tokenizer, random_model

FEW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
GOOD = {
    "copa": {"premise": "I ran.", "choice1": "a", "choice2": "b", "question": "effect", "label": 1},
    "mathqa": {"Problem": "1 ?", "options": "a ) 1 , b ) 2 , c ) 3 , d ) 4 , e ) 5", "correct": "b"},
    "openbookqa": {"question_stem": "x", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "A"},
    "piqa": {"goal": "g", "sol1": "a", "sol2": "b", "label": 0},
    "rte": {"premise": "p", "hypothesis": "h", "label": "entailment"},
    "sglue_rte": {"premise": "p", "hypothesis": "h", "label": "entailment"},
    "winogrande": {"sentence": "A _ b", "option1": "x", "option2": "y", "answer": "1"},
    "cnn_dm": {"article": "a", "highlights": "h"},
    "xsum": {"document": "d", "summary": "s"},
}


def folder_with(tmp_path, dataset: str, content: bytes) -> DataConfig:
    spec = DATASETS[dataset]
    place = tmp_path / (spec.folder or dataset)
    place.mkdir(exist_ok=True)
    (place / f"{spec.splits[-1]}.jsonl").write_bytes(content)
    return DataConfig("folder", str(tmp_path))


def read_or_sentence(read) -> str | None:
    """What an error says, on one line; None where there was none."""
    try:
        read()
        return None
    except UserError as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) > 20
    return said


# Rows


@FEW
@given(data=st.data())
@pytest.mark.parametrize("dataset", DATASETS)
def test_a_field_of_any_value_is_taken_or_named(tmp_path, dataset, data):
    field = data.draw(st.sampled_from(sorted(GOOD[dataset])))
    row = GOOD[dataset] | {field: data.draw(JSON)}
    line = json.dumps(row).encode()
    said = read_or_sentence(lambda: load_rows(dataset, folder_with(tmp_path, dataset, line)))
    if said is not None:
        assert "line 1" in said
    else:
        assert type(row[field]) is type(GOOD[dataset][field])


@pytest.mark.parametrize("dataset", DATASETS)
def test_a_missing_field_is_named(tmp_path, dataset):
    for field in GOOD[dataset]:
        row = {key: value for key, value in GOOD[dataset].items() if key != field}
        content = json.dumps(GOOD[dataset]).encode() + b"\n" + json.dumps(row).encode()
        said = read_or_sentence(lambda content=content: load_rows(dataset, folder_with(tmp_path, dataset, content)))
        assert said is not None
        assert "line 2" in said
        assert field in said


@FEW
@given(content=st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "ignore")))
def test_bytes_of_any_kind_are_no_rows(tmp_path, content):
    assert read_or_sentence(lambda: load_rows("piqa", folder_with(tmp_path, "piqa", content)))
    assert read_or_sentence(lambda: load_documents("xsum", folder_with(tmp_path, "xsum", content)))


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b'{"goal": ' + b"9" * 5000 + b"}",
        b'{"goal": "\\ud800", "sol1": "a", "sol2": "b", "label": 0}',
        b'{"goal": "a\\u0000b", "sol1": "", "sol2": "b", "label": 1e400}',
        b'{"goal": "g", "sol1": "a", "sol2": "b", "label": true}',
        b'{"goal": "g", "sol1": "a", "sol2": "b", "label": 0.0}',
        b"NaN",
        '{"goal": "Umlaut: ü"'.encode("latin-1"),
        b"\xff\xfe" + '{"goal": 1}'.encode("utf-16-le"),
    ],
    ids=["deep", "huge number", "surrogate", "infinity", "true", "float", "nan", "latin-1", "utf-16"],
)
def test_rows_that_break_readers_are_sentences(tmp_path, line):
    assert "line 1" in (read_or_sentence(lambda: load_rows("piqa", folder_with(tmp_path, "piqa", line))) or "")


@FEW
@given(content=st.binary(max_size=100))
def test_any_file_is_a_text_or_a_sentence(tmp_path, content):
    file = tmp_path / "x.txt"
    file.write_bytes(content)
    said = read_or_sentence(lambda: load_texts("text", DataConfig("packaged"), str(file)))
    if said is not None:
        assert "is not UTF-8" in said
    else:
        (text,), _ = load_texts("text", DataConfig("packaged"), str(file))
        assert text.text.encode() == content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


# Configurations


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model and questions."""
    folder = tmp_path_factory.mktemp("fuzz")
    random_model("llama").save_pretrained(folder / "llama")
    character_tokenizer().save_pretrained(folder / "llama")
    (folder / "piqa").mkdir()
    (folder / "piqa" / "validation.jsonl").write_text((json.dumps(GOOD["piqa"]) + "\n") * 8)
    return folder


KEYS = [
    *["task.limit", "task.num_fewshot", "task.fewshot", "task.fewshot_seed", "task.batch_tokens"],
    *["budget", "budget_tokens", "budget_base", "prefill", "positions", "executor", "seed", "resume"],
    *["policy.recent_fraction", "policy.recent_tokens", "policy.sink_tokens", "policy.pattern", "policy.taper"],
    *["policy.pattern_fraction", "policy.stride", "policy.block", "policy.priority", "policy.scope"],
    *["model.dtype", "model.device", "model.device_map", "model.path", "model.source", "model.max_memory"],
    *["data.source", "data.dir", "tracker.name", "tracker.mode", "model.tp_plan", "stats.name", "stats.threshold"],
    *["stats.heavy_share", "stats.checkpoints", "stats.sample_size", "stats.window"],
]
VALUES = st.one_of(
    st.sampled_from(["null", "0", "-1", "1", "2", "0.5", "nan", "inf", "-inf", "1e308", "true", "''", "[]", "{}"]),
    st.integers().map(str),
    st.floats().map(str),
    st.from_regex(r"[a-z/._]{1,12}", fullmatch=True),
)


@settings(FEW, max_examples=250)
@given(overrides=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3))
def test_any_configuration_is_checked_or_refused_in_a_sentence(place, overrides):
    words = ["model=local", f"model.path={place / 'llama'}", "data=folder", f"data.dir={place}", "tracker=none"]
    words += ["task.limit=4", "task.num_fewshot=0"]
    if "budget" not in overrides and "budget_tokens" not in overrides:
        words.append("budget=0.5")
    words = [word for word in words if word.partition("=")[0] not in overrides]
    register()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        try:
            cfg = compose("config", words + [f"{key}={value}" for key, value in overrides.items()])
        except (HydraException, OmegaConfBaseException):
            return  # Hydra's own sentence: a value of the wrong type
    if read_or_sentence(lambda: check(cfg)) is None:
        plan = check(cfg)
        assert plan.budget is not None
        assert plan.budget.entries(100, 120) >= 2
        assert math.isfinite(plan.policy.taper)


# Results


def stored(folder):
    """Two finished results, with samples."""
    for number in ("0", "1"):
        result = open_result(folder / number)
        result.write_samples([{"doc_id": i, "acc": 1.0} for i in range(3)])
        metrics = {"acc": 0.5, "acc_stderr": 0.1}
        about = {"model": "m", "task": "piqa", "policy": "h2o", "budget": 0.2, "cell": number, "overrides": []}
        result.finish(about | {"metrics": metrics, "main_metric": "acc", "kv_bytes": {"resident_mean": 10}})


@settings(FEW, max_examples=120)
@given(data=st.data())
def test_a_damaged_result_is_seen_and_the_others_are_read(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("results")
    stored(folder)
    file = folder / "1" / data.draw(st.sampled_from(["result.json", "samples.jsonl"]))
    content = file.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    kind = data.draw(st.sampled_from(["cut", "flip", "insert", "empty", "replace"]))
    if kind == "cut":
        content = content[:at]
    elif kind == "flip":
        content = content[:at] + bytes([content[at] ^ (1 << data.draw(st.integers(0, 7)))]) + content[at + 1 :]
    elif kind == "insert":
        content = content[:at] + data.draw(st.binary(min_size=1, max_size=8)) + content[at:]
    elif kind == "empty":
        content = b""
    else:
        content = json.dumps(data.draw(JSON)).encode()
    file.write_bytes(content)
    frame = load(folder)
    assert len(frame) == 2
    whole = frame[frame["path"] == str(folder / "0")].iloc[0]
    assert (whole["status"], whole["acc"]) == ("finished", 0.5)
    sweep_table(frame)
    samples = load_samples(folder)
    assert len(samples[samples["path"] == str(folder / "0")]) == 3
