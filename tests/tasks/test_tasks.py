"""Multiple-choice tasks against lm-eval's own HFLM, and the bookkeeping of splits and examples."""

import json

import pytest
from lm_eval.evaluator import evaluate as lm_evaluate
from lm_eval.models.huggingface import HFLM

from h2o_lab.config import DataConfig, HarnessConfig
from h2o_lab.errors import UserError
from h2o_lab.policies import H2O, Budget, Full
from h2o_lab.tasks.harness import check, evaluate, load
from h2o_lab.tasks.scoring import Scorer
from tests.support.choices import common
from tests.support.models import character_tokenizer, random_model
from tests.support.own_tasks import KINDS, own_task

PIQA = [{"goal": f"go {i}", "sol1": f"left {i * i}", "sol2": f"right {i}", "label": i % 2} for i in range(24)]
WINOGRANDE = [
    {"sentence": f"Ann paid Bob {i} as _ was rich.", "option1": "Ann", "option2": "Bob", "answer": str(i % 2 + 1)}
    for i in range(24)
]
BOOK = [
    {
        "question_stem": f"Is {i} odd?",
        "choices": {"text": ["no", "yes"], "label": ["A", "B"]},
        "answerKey": "AB"[i % 2],
    }
    for i in range(24)
]
COPA = [
    {"premise": f"It is {i}.", "choice1": "We go.", "choice2": "We stay on.", "question": "cause", "label": i % 2}
    for i in range(24)
]


@pytest.fixture
def data(tmp_path):
    """Writes rows as a data folder; returns its configuration."""

    def write(task: str, **splits: list[dict]) -> DataConfig:
        (tmp_path / task).mkdir()
        for name, rows in splits.items():
            (tmp_path / task / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return DataConfig(source="folder", dir=str(tmp_path))

    return write


@pytest.mark.parametrize(("name", "rows"), [("piqa", PIQA), ("winogrande", WINOGRANDE), ("copa", COPA)])
@pytest.mark.parametrize("shots", [0, 2])
def test_the_full_cache_equals_hflm(data, name, rows, shots):
    model, tokenizer = random_model("llama"), character_tokenizer()
    task = HarnessConfig(name=name, num_fewshot=shots, limit=10)
    loaded = load(task, data(name, validation=rows))
    ours = evaluate(loaded, task, Scorer(model, Full(), None), tokenizer)
    loaded.task.set_fewshot_seed(seed=task.fewshot_seed)
    hflm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=3)
    chosen = {"tasks": {name: loaded.task}, "groups": {}, "group_map": {}}
    theirs = lm_evaluate(hflm, chosen, limit=10, bootstrap_iters=0)
    for metric in ("acc", "acc_norm"):
        if metric in ours.metrics:
            assert ours.metrics[metric] == theirs["results"][name][f"{metric},none"]
    records = sorted(theirs["samples"][name], key=lambda record: record["doc_id"])
    for record, sample in zip(records, ours.samples, strict=True):
        answers = [(answer[0], answer[1]) for answer in record["filtered_resps"]]
        assert [c["logprob"] for c in sample["choices"]] == pytest.approx([a[0] for a in answers], abs=1e-3)
        assert [c["greedy"] for c in sample["choices"]] == [a[1] for a in answers]


def test_the_record_of_a_question_says_which_choice_is_right(data):
    task = HarnessConfig(name="winogrande", num_fewshot=0, limit=4)
    loaded = load(task, data("winogrande", validation=WINOGRANDE))
    found = evaluate(
        loaded, task, Scorer(random_model("llama"), H2O(), Budget(fraction=0.5)), character_tokenizer()
    )
    assert [sample["gold"] for sample in found.samples] == [0, 1, 0, 1]
    assert [c["text"] for c in found.samples[0]["choices"]] == [
        "Ann paid Bob 0 as Ann was rich.",
        "Ann paid Bob 0 as Bob was rich.",
    ]
    for sample in found.samples:
        means = [choice["logprob"] / choice["tokens"] for choice in sample["choices"]]
        assert sample["acc_token_mean"] == float(means.index(max(means)) == sample["gold"])
    mean = sum(sample["acc_token_mean"] for sample in found.samples) / 4
    assert found.metrics["acc_token_mean"] == mean


def test_examples_never_come_from_evaluated_rows(data):
    folder = data("piqa", validation=PIQA)
    loaded = load(HarnessConfig(name="piqa"), folder)
    asked = {row["goal"] for row in loaded.task.validation_docs()}
    shown = {row["goal"] for row in loaded.task.fewshot_docs()}
    assert len(asked) == 18
    assert len(shown) == 6
    assert not asked & shown
    assert loaded.origin.endswith("split validation less its last 6 rows")


@pytest.mark.parametrize(
    ("name", "splits", "origin", "examples"),
    [
        ("piqa", {"train": PIQA[:5], "validation": PIQA[5:]}, "split validation", "split train"),
        (
            "openbookqa",
            {"validation": BOOK[5:], "test": BOOK[:5]},
            "split test",
            "split validation (not evaluated)",
        ),
        ("piqa", {"validation": PIQA[:3]}, "less its last 0 rows", "no examples"),
    ],
)
def test_splits(data, name, splits, origin, examples):
    shots = 0 if examples == "no examples" else 5
    loaded = load(HarnessConfig(name=name, num_fewshot=shots), data(name, **splits))
    assert loaded.origin.endswith(origin)
    assert loaded.fewshot_from == examples


@pytest.mark.parametrize(
    ("splits", "shots", "message"),
    [
        ({"train": PIQA}, 1, "has no split to evaluate"),
        ({"validation": PIQA[:3]}, 1, "asks for more examples than there are"),
        ({"validation": PIQA}, 7, "asks for more examples than there are.*has 6"),
    ],
)
def test_refused_splits(data, splits, shots, message):
    with pytest.raises(UserError, match=message):
        load(HarnessConfig(name="piqa", num_fewshot=shots), data("piqa", **splits))


def contexts(loaded) -> list[str]:
    """What lm-eval puts before the choices of each question."""
    firsts = [instance for instance in loaded.task.instances if instance.idx == 0]
    return [instance.args[0] for instance in sorted(firsts, key=lambda instance: instance.doc_id)]


@pytest.mark.parametrize(("name", "rows"), [("piqa", PIQA), ("openbookqa", BOOK), ("winogrande", WINOGRANDE)])
def test_fixed_examples_are_the_first_for_every_question_and_equal_hflm(data, name, rows):
    model, tokenizer = random_model("llama"), character_tokenizer()
    task = HarnessConfig(name=name, num_fewshot=2, fewshot="fixed", limit=8)
    loaded = load(task, data(name, validation=rows))
    scorer = Scorer(model, Full(), None)
    ours = evaluate(loaded, task, scorer, tokenizer)
    hflm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=3)
    chosen = {"tasks": {name: loaded.task}, "groups": {}, "group_map": {}}
    theirs = lm_evaluate(hflm, chosen, limit=8, bootstrap_iters=0)
    records = sorted(theirs["samples"][name], key=lambda record: record["doc_id"])
    for record, sample in zip(records, ours.samples, strict=True):
        answers = [answer[0] for answer in record["filtered_resps"]]
        assert [c["logprob"] for c in sample["choices"]] == pytest.approx(answers, abs=1e-3)
    given = contexts(loaded)
    start = "".join(common(given))
    assert start.count("\n\n") == 2
    assert len(set(given)) == 8
    assert ours.details["fewshot"] | {"from": ""} == {"examples": 2, "choice": "fixed", "seed": 0, "from": ""}
    longest = max(len(sample["choices"][0]["text"]) for sample in ours.samples)
    assert ours.tokens_computed < len(start) + 8 * (max(map(len, given)) - len(start) + 2 * longest)


def test_examples_are_drawn_anew_for_each_question_by_default(data):
    task = HarnessConfig(name="piqa", num_fewshot=2, limit=8)
    loaded = load(task, data("piqa", validation=PIQA))
    evaluate(loaded, task, Scorer(random_model("llama"), Full(), None), character_tokenizer())
    assert "".join(common(contexts(loaded))).count("\n\n") == 0


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (HarnessConfig(name="piqa", fewshot="first"), "task.fewshot=first is unknown: .* sampled, fixed"),
        (HarnessConfig(name="piqa", fewshot="fixed", fewshot_seed=3), "task.fewshot_seed=3 draws nothing"),
    ],
)
def test_refused_ways_to_choose_examples(data, task, message):
    folder = data("piqa", validation=PIQA)
    with pytest.raises(UserError, match=message):
        check(task, folder, Full())


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_task_equals_hflm(tmp_path, kind):
    model, tokenizer = random_model("llama"), character_tokenizer()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    task = own_task(tmp_path, **KINDS[kind])
    loaded = load(task, DataConfig(source="hub"))
    ours = evaluate(loaded, task, Scorer(model, Full(), None), tokenizer)
    hflm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=2, max_length=256)
    chosen = {"tasks": {"asks": loaded.task}, "groups": {}, "group_map": {}}
    theirs = lm_evaluate(hflm, chosen, bootstrap_iters=0)
    for key, value in theirs["results"]["asks"].items():
        if key.endswith(",none") and "stderr" not in key:
            assert ours.metrics[key.removesuffix(",none")] == pytest.approx(value, rel=1e-4)
    for record, sample in zip(theirs["samples"]["asks"], ours.samples, strict=True):
        if kind == "generate_until":
            assert sample["texts"] == record["filtered_resps"]
        else:
            number = record["filtered_resps"][0]
            number = number[0] if isinstance(number, (tuple, list)) else number
            assert sample["logprob"] == pytest.approx(number, abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_task_runs_under_a_budget(tmp_path, kind):
    task = own_task(tmp_path, **KINDS[kind])
    scorer = Scorer(random_model("llama"), H2O(), Budget(fraction=0.5))
    found = evaluate(load(task, DataConfig(source="hub")), task, scorer, character_tokenizer())
    lengths = [len(f"{word} and then {i}") for i, word in enumerate(("go", "we stay", "it is so"))]
    expected = [max(2, (length + (kind == "loglikelihood_rolling")) // 2) for length in lengths]
    assert found.caps == expected
    assert scorer.budget.base == "prompt"


@pytest.mark.parametrize("shots", [1, 2, 3])
def test_a_question_is_not_among_its_own_examples(tmp_path, shots):
    """Where examples come from the rows that are asked, lm-eval leaves the question out."""
    task = own_task(tmp_path, **KINDS["loglikelihood"], fewshot_split="test")
    task.num_fewshot, task.fewshot = shots, "fixed"
    if shots == 3:
        with pytest.raises(UserError, match="task.num_fewshot=3 asks for more examples than the 2 of asks"):
            load(task, DataConfig(source="hub"))
        return
    loaded = load(task, DataConfig(source="hub"))
    evaluate(loaded, task, Scorer(random_model("llama"), Full(), None), character_tokenizer())
    assert [context.count("the sun") for context in contexts(loaded)] == [shots] * 3
    for doc, context in zip(loaded.task.eval_docs, contexts(loaded), strict=True):
        assert context.count(doc["q"]) == 1


def test_a_task_of_your_own(tmp_path):
    """`task.include_path`: a YAML as lm-eval's users write it, with its own data."""
    rows = [{"q": f"Is {i} odd?", "options": ["no", "yes"], "gold": i % 2} for i in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "odd.yaml").write_text(
        f"task: odd\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {tmp_path / 'rows.jsonl'}}}}}\n"
        "output_type: multiple_choice\ntest_split: test\ndoc_to_text: q\ndoc_to_target: gold\n"
        "doc_to_choice: options\nmetric_list: [{metric: acc}]\n"
    )
    task = HarnessConfig(name="odd", num_fewshot=0, include_path=str(tmp_path))
    loaded = load(task, DataConfig(source="hub"))
    scorer = Scorer(random_model("llama"), H2O(), Budget(tokens=6))
    found = evaluate(loaded, task, scorer, character_tokenizer())
    assert loaded.origin == f"the definition in {tmp_path}"
    assert [sample["gold"] for sample in found.samples] == [0, 1] * 4
    assert set(found.caps) == {6}
    assert found.metrics["acc"] == sum(sample["acc"] for sample in found.samples) / 8
