"""Summarisation: prompts, examples, what does not fit, metrics by hand, and the command line."""

import json
import re

import pytest

from h2o_lab.config import DataConfig, SummarisationConfig
from h2o_lab.errors import UserError
from h2o_lab.policies import H2O, Budget, Full, GlobalH2
from h2o_lab.results import load, load_samples
from h2o_lab.tasks import summarisation as kind
from h2o_lab.tasks.generation import Generated, Generations
from h2o_lab.tasks.reader import Reader
from tests.support.command_line import run
from tests.support.models import character_tokenizer, random_model

TOKENIZER = character_tokenizer()
PROMPT = "Text: {document}\nShort:"
CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<model>{% endif %}"
)


def rows(count: int, name: str = "row") -> list[dict]:
    return [{"document": f"{name} {i} has  five words", "summary": f"{name} {i}."} for i in range(count)]


def task(**fields) -> SummarisationConfig:
    return SummarisationConfig(**{"name": "xsum", "prompt": PROMPT, "max_new_tokens": 6} | fields)


@pytest.fixture
def folder(tmp_path):
    """Writes rows as a data folder; returns its configuration."""

    def write(name: str = "xsum", **splits: list[dict]) -> DataConfig:
        (tmp_path / name).mkdir()
        for split, lines in splits.items():
            (tmp_path / name / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
        return DataConfig(source="folder", dir=str(tmp_path))

    return write


@pytest.fixture
def said(monkeypatch):
    """Replaces the model: call it with the texts to answer; afterwards it holds the prompts that were given."""
    prompts: list[str] = []

    def answer(*texts: str):
        def generate_all(reader, tokenizer, given, budget, sampling, **rest):
            prompts[:] = [tokenizer.decode(prompt) for prompt in given]
            results = [Generated(TOKENIZER.encode(text), text, "stop", 8) for text in texts or [""] * len(given)]
            return Generations(results, [3] * len(given), 0, 8, 1.0)

        monkeypatch.setattr(kind, "generate_all", generate_all)
        return prompts

    return answer


def evaluate(settings, data, policy=None, budget=None, tokenizer=TOKENIZER, model=None, **options):
    reader = Reader(model or random_model("llama"), policy or Full(), **options)
    return kind.evaluate(kind.load(settings, data), settings, budget, reader, tokenizer)


@pytest.mark.parametrize(
    ("words", "document"), [(None, "row 1 has  five words"), (5, "row 1 has  five words"), (3, "row 1 has")]
)
def test_a_prompt_is_the_document_cut_to_its_first_words(folder, said, words, document):
    prompts = said()
    found = evaluate(task(document_words=words), folder(test=rows(3)))
    assert prompts[1] == f"Text: {document}\nShort:"
    assert [sample["prompt_tokens"] for sample in found.samples] == [len(prompt) for prompt in prompts]
    assert not any(sample["truncated"] for sample in found.samples)


def test_examples_are_cut_too_and_come_first(folder, said):
    prompts = said()
    settings = task(num_fewshot=1, document_words=2, example=" {summary} ~ ")
    evaluate(settings, folder(test=rows(1), train=rows(1, "old")))
    assert prompts == ["Text: old 0\nShort: old 0. ~ Text: row 0\nShort:"]


@pytest.mark.parametrize("splits", [{"test": 12, "train": 12}, {"test": 12, "validation": 12}, {"validation": 12}])
def test_examples_are_never_evaluated_and_are_drawn_by_their_seed(folder, said, splits):
    data = folder(**{split: rows(count, split) for split, count in splits.items()})
    prompts = said()

    def examples(**fields) -> list[list[str]]:
        evaluate(task(num_fewshot=2, context=10_000, **fields), data)
        return [re.findall(r"Text: (\w+ \d+)", prompt) for prompt in prompts]

    first = examples()
    asked, shown = {names[-1] for names in first}, {name for names in first for name in names[:-1]}
    assert len(asked) == len(first) == (12 if "test" in splits else 9)
    assert all(len(set(names)) == 3 for names in first)
    assert not asked & shown
    assert len(shown) > 2  # drawn anew for each
    assert {name.split()[0] for name in shown} == {"train" if "train" in splits else "validation"}
    assert examples() == first
    assert examples(limit=4) == first[:4]
    assert examples(fewshot_seed=1) != first


def test_splits(folder):
    data = folder(test=rows(3), validation=rows(2, "old"))
    loaded = kind.load(task(limit=2), data)
    assert loaded.rows == rows(2)
    assert loaded.pool == rows(2, "old")
    assert loaded.origin.endswith("xsum/validation.jsonl, xsum/test.jsonl, split test")
    assert kind.load(task(limit=None), data).rows == rows(3)


def test_cnn_dm_rows_have_names_of_their_own(folder):
    articles = [{"article": "Long text.", "highlights": "Short.", "id": "1"}]
    loaded = kind.load(task(name="cnn_dm"), folder("cnn_dailymail", test_subset=articles))
    assert loaded.rows == [{"document": "Long text.", "summary": "Short."}]
    assert loaded.origin.endswith("cnn_dailymail/test_subset.jsonl, split test")


def test_a_document_that_does_not_fit_is_refused_or_cut_to_what_fits(folder, said):
    prompts = said()
    long = {"document": "averyveryverylongword " * 6 + "end", "summary": "Long."}
    data = folder(test=[*rows(1), long])
    assert len(PROMPT.format(document="")) == 13
    with pytest.raises(
        UserError, match="xsum document 1 needs 148 tokens and 6 to answer, and the context has 153"
    ):
        evaluate(task(context=153), data)
    evaluate(task(context=154), data)
    for context, count in ((153, 6), (84, 3), (83, 2), (40, 1), (39, 0)):
        found = evaluate(task(context=context, too_long="truncate"), data)
        assert prompts[1] == PROMPT.format(document=" ".join(["averyveryverylongword"] * count))
        assert [sample["truncated"] for sample in found.samples] == [context < 40, True]
        assert found.samples[1]["prompt_tokens"] + 6 <= context
    with pytest.raises(UserError, match="the examples of xsum document 0 alone exceed the context of 18 tokens"):
        evaluate(task(context=18, too_long="truncate"), data)


def test_the_model_s_own_context_counts(folder, said):
    said()
    data = folder(test=[{"document": "x" * 237, "summary": "x"}])
    evaluate(task(), data)  # 237 + 13 + 6 = 256
    with pytest.raises(UserError, match="needs 250 tokens and 7 to answer, and the context has 256"):
        evaluate(task(max_new_tokens=7), data)


def test_the_chat_template(folder, said):
    prompts, tokenizer = said(), character_tokenizer()
    settings, data = (
        task(chat=True, num_fewshot=1, example="{summary}|"),
        folder(test=rows(1), train=rows(1, "old")),
    )
    with pytest.raises(UserError, match="task.chat=true is impossible: the model's tokenizer has no chat template"):
        evaluate(settings, data, tokenizer=tokenizer)
    tokenizer.chat_template = CHAT
    evaluate(settings, data, tokenizer=tokenizer)
    inside = "Text: old 0 has  five words\nShort:old 0.|Text: row 0 has  five words\nShort:"
    assert prompts == [f"<user>{inside}</><model>"]
    evaluate(task(), data, tokenizer=tokenizer)
    assert prompts == ["Text: row 0 has  five words\nShort:"]


def test_metrics(folder, said):
    texts = [" row 0.", "a b c d a b c d", "a row 2 away", ""]
    said(*texts)
    found = evaluate(task(self_bleu_texts=2), folder(test=rows(4)))
    metrics = found.metrics
    assert next(iter(metrics)) == "rouge2"
    want = {"rouge1": [1, 0, 2 / 3, 0], "rouge2": [1, 0, 1 / 2, 0], "rougeL": [1, 0, 2 / 3, 0]}
    for name, values in want.items():
        assert [sample[name] for sample in found.samples] == pytest.approx(values)
        mean = sum(values) / 4
        assert metrics[name] == pytest.approx(mean)
        error = (sum((value - mean) ** 2 for value in values) / 3 / 4) ** 0.5
        assert metrics[f"{name}_stderr"] == pytest.approx(error)
        low, high = metrics[f"{name}_low"], metrics[f"{name}_high"]
        assert 0 <= low < mean < high <= 1
        assert high - low == pytest.approx(2 * 1.96 * error * 0.75**0.5, rel=0.15)  # of 4 values, the plug-in error
    assert metrics["self_bleu"] == 0
    assert metrics["distinct_1"] == 7 / 11
    assert metrics["distinct_2"] == 6 / 9
    assert metrics["repetition"] == pytest.approx(1 / 20)
    assert metrics["tokens"] == (7 + 15 + 12) / 4
    for key, values in {
        "doc_id": [0, 1, 2, 3],
        "reference": [f"row {i}." for i in range(4)],
        "text": texts,
        "ended_by": ["stop"] * 4,
        "tokens": [7, 15, 12, 0],
        "words": [3, 8, 4, 0],
        "repetition": pytest.approx([0, 1 / 5, 0, 0]),
        "k": [3] * 4,
        "kv_bytes": [8] * 4,
    }.items():
        assert [sample[key] for sample in found.samples] == values
    assert found.tokens_scored == 34
    assert found.details == {"fewshot": {"examples": 0, "seed": 0}}


@pytest.mark.parametrize("prefill", ["evict", "full"])
def test_a_model_summarises_under_a_policy(folder, prefill):
    data = folder(test=[*rows(2), {"document": "much longer than the others are", "summary": "long"}])
    options = {"policy": H2O(), "budget": Budget(fraction=0.3), "prefill": prefill}
    found = evaluate(task(temperature=1.0, stop=["e"]), data, **options)
    sizes = [len(PROMPT.format(document=row["document"])) for row in kind.load(task(), data).rows]
    assert [sample["k"] for sample in found.samples] == found.caps == [int(0.3 * size) for size in sizes]
    layers, heads, size, floats = 3, 2, 8, 4
    assert found.kv_resident == [layers * heads * 2 * k * size * floats for k in found.caps]
    assert found.kv_reserved >= max(found.kv_resident)
    assert {sample["ended_by"] for sample in found.samples} <= {"stop", "length", "end"}
    same = evaluate(task(temperature=1.0, stop=["e"], batch_tokens=1), data, **options)
    assert same.samples == found.samples
    other = evaluate(task(temperature=1.0, stop=["e"], sampling_seed=1), data, **options)
    assert [sample["text"] for sample in other.samples] != [sample["text"] for sample in found.samples]


def test_empty_summaries(folder):
    model = random_model("llama")
    model.generation_config.eos_token_id = list(range(97))
    found = evaluate(task(), folder(test=rows(3)), model=model)
    assert [(sample["text"], sample["ended_by"]) for sample in found.samples] == [("", "end")] * 3
    assert found.metrics["rouge2"] == found.metrics["tokens"] == found.metrics["repetition"] == 0
    for name in ("self_bleu", "distinct_1", "distinct_2"):
        assert found.metrics[name] != found.metrics[name]  # NaN
    assert "rouge2_low" not in found.metrics  # nothing varies


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": "Summarise."}, r"task.prompt must hold \{document\}"),
        ({"example": "done"}, r"task.example \{summary\}"),
        ({"too_long": "maybe"}, "task.too_long=maybe is unknown: it must be refuse or truncate"),
        ({"temperature": -1.0}, "temperature=-1.0 is out of range"),
        ({"top_p": 0.0}, "top_p=0.0 is out of range"),
        ({"max_new_tokens": 0}, "max_new_tokens=0 is out of range"),
        ({"stop": ["###", ""]}, "stop holds an empty string"),
        ({"num_fewshot": -1}, "task.num_fewshot=-1 is out of range"),
        ({"document_words": 0}, "task.document_words=0 is out of range"),
        ({"context": 0}, "task.context=0 is out of range"),
        ({"name": "rte"}, "has no folder rte"),
    ],
)
def test_refused_settings(folder, fields, message):
    with pytest.raises(UserError, match=message):
        kind.check(task(**fields), folder(test=rows(2)), H2O())


def test_refused_rows_and_policies(folder, said):
    said()
    data = folder(validation=rows(8))
    kind.check(task(), data, H2O())
    with pytest.raises(UserError, match="policy global_h2 looks at tokens to come"):
        kind.check(task(), data, GlobalH2())
    with pytest.raises(UserError, match="task.num_fewshot=3 asks for more examples than"):
        kind.check(task(num_fewshot=3), data, H2O())
    with pytest.raises(UserError, match="data=packaged has no cnn_dm"):
        kind.check(task(name="cnn_dm"), DataConfig(source="packaged"), H2O())
    folder("mine", test=[{"text": "no document"}])
    with pytest.raises(UserError, match="has rows without document or summary: mine cannot be summarised"):
        kind.check(task(name="mine"), data, H2O())
    folder("learnt", train=rows(2))
    with pytest.raises(UserError, match="has no split to evaluate: learnt needs test or validation rows"):
        kind.check(task(name="learnt"), data, H2O())


@pytest.mark.parametrize(
    ("words", "metric"),
    [
        (["task=xsum", "task.limit=2", "task.max_new_tokens=9", "data=folder", "data.dir=."], "rouge2"),
        (["task=text", "task.path=story.txt", "task.window=50"], "perplexity"),
    ],
)
def test_the_command_line(folder, tmp_path, words, metric):
    folder(test=rows(3))
    (tmp_path / "story.txt").write_text("Once upon a time there was a fox. " * 5)
    random_model("llama").save_pretrained(tmp_path / "llama")
    TOKENIZER.save_pretrained(tmp_path / "llama")
    place = ["model=local", "model.path=llama", "tracker=none", "executor=reference", "budget=0.3"]
    done = run(tmp_path, *words, *place, small=False)
    assert done.returncode == 0, done.stderr
    (cell,) = load(tmp_path / "results").to_dict("records")
    assert (cell["main_metric"], cell["status"], cell["policy"]) == (metric, "finished", "h2o")
    assert cell[metric] >= 0
    assert f"{metric} {cell[metric]:.3f}" in " ".join(done.stderr.split())
    assert len(load_samples(tmp_path / "results")) == cell["samples"]
