"""Retrieval: where a fact stands, how answers are compared, accuracy by depth, and the command line."""

import json
import re

import pytest

from h2o_lab.config import DataConfig, RetrievalConfig
from h2o_lab.errors import UserError
from h2o_lab.policies import H2O, Budget, DropH2, Full
from h2o_lab.results import load, load_samples
from h2o_lab.tasks import retrieval as kind
from h2o_lab.tasks.generation import Generated, Generations, Sampling
from h2o_lab.tasks.haystacks import FILLER
from h2o_lab.tasks.reader import Reader
from tests.support.command_line import run
from tests.support.models import character_tokenizer, random_model

TOKENIZER = character_tokenizer()
DRAWN = DataConfig(source="packaged")
DEPTHS = (0.0, 0.5, 1.0)


def task(name="needle", **fields) -> RetrievalConfig:
    return RetrievalConfig(**{"name": name, "size": 5, "max_new_tokens": 4} | fields)


def records(count: int, pairs: int) -> list[dict]:
    """Rows of "Lost in the middle": the pair that is asked for stands last."""
    return [
        {
            "ordered_kv_records": [[f"k{i}-{j}", f"v{i}-{j}"] for j in range(pairs)],
            "key": f"k{i}-{pairs - 1}",
            "value": f"v{i}-{pairs - 1}",
        }
        for i in range(count)
    ]


def passages(count: int) -> list[dict]:
    wrong = {"title": "Wrong", "text": "Nothing.", "isgold": False}
    return [
        {
            "question": f"who is {i}",
            "answers": [f"Person {i}", f"Nr {i}"],
            "ctxs": [wrong, {"title": f"Title {i}", "text": f"Person {i} is {i}.", "isgold": True}],
        }
        for i in range(count)
    ]


@pytest.fixture
def folder(tmp_path):
    """Writes rows into `longctx`; returns the configuration of the data."""

    def write(file: str, rows: list) -> DataConfig:
        (tmp_path / "longctx").mkdir(exist_ok=True)
        (tmp_path / "longctx" / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return DataConfig(source="folder", dir=str(tmp_path))

    return write


def asked(settings, data=DRAWN, depth=0.5) -> list[tuple[str, list[str]]]:
    """Prompt and answers of every question."""
    facts = kind.load(settings, data)
    return [facts.question(index, depth, TOKENIZER) for index in range(len(facts))]


@pytest.mark.parametrize(("depth", "before"), [(0, 0), (0.25, 2), (0.5, 4), (0.7, 6), (1, 8)])
def test_a_needle_stands_at_its_depth(depth, before):
    for prompt, (number,) in asked(task(size=8 * len(FILLER) + 9), depth=depth):
        assert re.fullmatch(r"[1-9]\d{4}", number)
        needle = f"The secret number is {number}. Keep it in mind: {number} is the secret number. "
        head, text, question = prompt.split("\n\n")
        assert text == FILLER * before + needle + FILLER * (8 - before)
        assert question.endswith("The secret number is")
        assert number not in head + question


def test_there_is_filler_however_small_the_size():
    assert all(prompt.count(FILLER) == 1 for prompt, _ in asked(task(size=1)))
    assert all(prompt.count(FILLER) == 100 for prompt, _ in asked(task(size=100 * len(FILLER))))


def pairs_of(prompt: str) -> tuple[list[list[str]], str]:
    """The pairs as they stand in the JSON object, and the key that is asked for."""
    _, text, question = prompt.split("\n\n")
    pairs = json.loads(text, object_pairs_hook=lambda found: [list(pair) for pair in found])
    return pairs, re.fullmatch(r'The value of "(.*)" is: "', question)[1]


@pytest.mark.parametrize("source", ["drawn", "file"])
@pytest.mark.parametrize(("depth", "place"), [(0, 0), (0.5, 3), (0.8, 5), (1, 6)])
def test_a_pair_stands_at_its_depth(folder, source, depth, place):
    rows = records(4, 9)
    data = DRAWN if source == "drawn" else folder("kv_retrieval_9_keys.jsonl", rows)
    found = asked(task("kv_retrieval", size=7, limit=3), data, depth)
    assert len(found) == 3
    for i, (prompt, answers) in enumerate(found):
        pairs, key = pairs_of(prompt)
        assert len(pairs) == len({key for key, _ in pairs}) == 7
        assert pairs[place] == [key, *answers]
        if source == "file":
            assert key == rows[i]["key"]
            assert [p for p in pairs if p[0] != key] == rows[i]["ordered_kv_records"][:6]
        else:
            assert all(re.fullmatch(r"[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}", word) for p in pairs for word in p)


@pytest.mark.parametrize(("depth", "place"), [(0, 0), (0.5, 2), (1, 4)])
def test_a_passage_stands_at_its_depth(folder, depth, place):
    data = folder("nq_open_oracle.jsonl", passages(9))
    found = asked(task("multi_doc_qa", size=5, limit=4), data, depth)
    assert len(found) == 4
    others = set()
    for i, (prompt, answers) in enumerate(found):
        _, text, question = prompt.split("\n\n")
        lines = text.split("\n")
        assert len(lines) == 5
        assert lines[place] == f"[{place + 1}] Title {i}: Person {i} is {i}."
        shown = [
            re.fullmatch(rf"\[{n}\] Title (\d): Person \1 is \1\.", line)[1] for n, line in enumerate(lines, 1)
        ]
        assert len(set(shown)) == 5
        others |= set(shown)
        assert question == f"Question: who is {i}\nAnswer:"
        assert answers == [f"Person {i}", f"Nr {i}"]
    assert others & set("45678")  # rows that are not asked serve too


def test_without_a_mark_the_first_passage_is_the_right_one(folder):
    unmarked = [{"title": "First", "text": "Here."}, {"title": "Second", "text": "There."}]
    rows = [row | {"ctxs": unmarked} for row in passages(2)]
    (prompt, _), _ = asked(task("multi_doc_qa", size=1), folder("nq_open_oracle.jsonl", rows))
    assert "[1] First: Here.\n" in prompt


@pytest.mark.parametrize("name", ["needle", "kv_retrieval", "multi_doc_qa"])
def test_questions_are_drawn_by_their_seed(folder, name):
    data = DRAWN if name != "multi_doc_qa" else folder("nq_open_oracle.jsonl", passages(10))
    first = asked(task(name), data)
    assert len(first) == 10
    assert len({prompt for prompt, _ in first}) == 10
    assert asked(task(name), data) == first
    assert asked(task(name, limit=3), data) == first[:3]
    assert asked(task(name, limit=None), data) == first
    assert asked(task(name, data_seed=1), data) != first


@pytest.fixture
def said(monkeypatch):
    """Replaces the model: call it with what it answers at each depth; it then holds the prompts it was given."""
    prompts: list[str] = []

    def answer(*texts: str):
        def generate_all(reader, tokenizer, given, budget, sampling, **rest):
            assert sampling == Sampling(4)
            prompts[:] = [tokenizer.decode(prompt) for prompt in given]
            results = [Generated([5], text, "length", 8) for text in texts]
            return Generations(results, [3] * len(given), 0, 8, 1.0)

        monkeypatch.setattr(kind, "generate_all", generate_all)
        return prompts

    return answer


def evaluate(settings, data=DRAWN, tokenizer=TOKENIZER, policy=None, budget=None, **options):
    reader = Reader(random_model("llama"), policy or Full(), **options)
    return kind.evaluate(kind.load(settings, data), settings, budget, reader, tokenizer)


def test_answers_are_compared_without_case_and_spaces(folder, said):
    texts = [" PERSON\n 0 it is", "it is nr  1.", "Person2", "Person 0", "", "Person  5", "nr 66"]
    said(*texts)
    settings = task("multi_doc_qa", limit=7, depths=[0.3])
    found = evaluate(settings, folder("nq_open_oracle.jsonl", passages(9)))
    assert [sample["right"] for sample in found.samples] == [1, 1, 0, 0, 0, 1, 1]
    assert [sample["text"] for sample in found.samples] == texts
    assert found.metrics["accuracy"] == pytest.approx(4 / 7)


def test_accuracy_by_depth(said):
    settings = task(depths=[1.0, 0.25], limit=4, size=4 * len(FILLER))
    numbers = [number for _, (number,) in asked(settings)]
    prompts = said(*(f" {number}." for number in numbers), numbers[0], "12", numbers[1], numbers[1])
    found = evaluate(settings)
    assert prompts == [prompt for depth in (1.0, 0.25) for prompt, _ in asked(settings, depth=depth)]
    assert found.metrics == pytest.approx(
        {
            "accuracy": 5 / 8,
            "accuracy_stderr": (5 / 8 * 3 / 8 / 7) ** 0.5,
            "accuracy_at_1": 1,
            "accuracy_at_1_stderr": 0,
            "accuracy_at_0.25": 1 / 4,
            "accuracy_at_0.25_stderr": (1 / 4 * 3 / 4 / 3) ** 0.5,
        }
    )
    assert next(iter(found.metrics)) == "accuracy"
    assert [(s["depth"], s["doc_id"]) for s in found.samples] == [(d, i) for d in (1.0, 0.25) for i in range(4)]
    assert [s["answers"] for s in found.samples] == [[number] for number in numbers] * 2
    assert [s["prompt_tokens"] for s in found.samples] == [len(prompt) for prompt in prompts]
    assert found.caps == [s["k"] for s in found.samples] == [3] * 8
    assert found.tokens_scored == 8


def test_the_chat_template(said):
    prompts, tokenizer = said("", ""), character_tokenizer()
    settings = task(chat=True, limit=2, depths=[0.0])
    with pytest.raises(UserError, match="task.chat=true is impossible: the model's tokenizer has no chat template"):
        evaluate(settings, tokenizer=tokenizer)
    tokenizer.chat_template = "<user>{{ messages[0].content }}{% if add_generation_prompt %}<model>{% endif %}"
    evaluate(settings, tokenizer=tokenizer)
    assert prompts == [f"<user>{prompt}<model>" for prompt, _ in asked(settings, depth=0)]


@pytest.mark.parametrize("prefill", ["evict", "full"])
def test_a_model_answers_under_a_policy(folder, prefill):
    data = folder("kv_retrieval.jsonl", records(2, 4))
    settings = task("kv_retrieval", size=4, depths=[0.0, 1.0])
    options = {"policy": H2O(), "budget": Budget(fraction=0.2), "prefill": prefill}
    found = evaluate(settings, data, **options)
    sizes = [len(prompt) for depth in (0, 1) for prompt, _ in asked(settings, data, depth)]
    assert [sample["k"] for sample in found.samples] == [int(0.2 * size) for size in sizes]
    layers, heads, size, floats = 3, 2, 8, 4
    assert found.kv_resident == [layers * heads * 2 * k * size * floats for k in found.caps]
    settings.batch_tokens = 1
    assert evaluate(settings, data, **options).samples == found.samples


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "haystack"}, "task.name=haystack is no retrieval task: it must be one of needle, kv_retrieval"),
        ({"size": 0}, "task.size=0 is out of range"),
        ({"max_new_tokens": 0}, "task.max_new_tokens=0 is out of range"),
        ({"data_seed": -1}, "task.data_seed=-1 is out of range"),
        ({"depths": []}, r"task.depths=\[\] is out of range"),
        ({"depths": [0.5, 1.01]}, r"task.depths=\[0.5, 1.01\] is out of range: depths must be in \[0, 1\]"),
        ({"depths": [-0.1]}, r"task.depths=\[-0.1\] is out of range"),
        (
            {"name": "multi_doc_qa"},
            "data=packaged has no multi_doc_qa: use data=folder data.dir=FOLDER, with longctx/",
        ),
    ],
)
def test_refused_settings(fields, message):
    kind.check(task(), DRAWN, H2O())
    with pytest.raises(UserError, match=message):
        kind.check(task(**fields), DRAWN, H2O())
    with pytest.raises(UserError, match="policy drop_h2 looks at tokens to come"):
        kind.check(task(), DRAWN, DropH2())


BROKEN_PAIRS = {"ordered_kv_records": ["k", "v"], "key": "k", "value": "v"}
BROKEN_PASSAGE = {"question": "who", "answers": ["me"], "ctxs": [{"text": "no title"}]}


@pytest.mark.parametrize(
    ("name", "file", "rows", "message"),
    [
        ("kv_retrieval", "kv.jsonl", records(2, 9), "has no longctx/kv_retrieval.*jsonl for kv_retrieval"),
        ("kv_retrieval", "kv_retrieval.jsonl", records(1, 9) + records(1, 4), "task.size=5 is.*there are 4 pairs"),
        ("kv_retrieval", "kv_retrieval.jsonl", [*records(1, 9), {"key": "k"}], "line 2: the row lacks ordered_kv"),
        ("kv_retrieval", "kv_retrieval.jsonl", [BROKEN_PAIRS], "line 1: ordered_kv_records holds something else"),
        ("multi_doc_qa", "nq_open.jsonl", passages(4), "task.size=5 is out of range: there are 4 passages"),
        ("multi_doc_qa", "nq_open.jsonl", [BROKEN_PASSAGE], "line 1: the row lacks title"),
        ("multi_doc_qa", "nq_open.jsonl", [BROKEN_PASSAGE | {"ctxs": []}], "line 1: ctxs holds no passage"),
        ("multi_doc_qa", "nq_open.jsonl", [BROKEN_PASSAGE | {"answers": "me"}], "line 1: answers is 'me'"),
    ],
)
def test_refused_files(folder, name, file, rows, message):
    with pytest.raises(UserError, match=message):
        kind.check(task(name), folder(file, rows), H2O())


@pytest.mark.parametrize("place", [None, "nowhere"])
def test_a_missing_folder(place):
    with pytest.raises(UserError, match=f"data.dir={place} is not a folder: it has to hold longctx/nq_open"):
        kind.check(task("multi_doc_qa"), DataConfig(source="folder", dir=place), H2O())


def test_a_sweep_from_the_command_line(tmp_path):
    random_model("llama").save_pretrained(tmp_path / "llama")
    TOKENIZER.save_pretrained(tmp_path / "llama")
    words = ["-m", "policy=full,h2o", "budget=0.2", "task=needle", "task.size=90", "task.limit=2", "tracker=none"]
    place = ["task.depths=[0,1]", "model=local", "model.path=llama", "executor=reference"]
    done = run(tmp_path, *words, *place, small=False)
    assert done.returncode == 0, done.stderr
    assert "2 cells, 0 without a result" in done.stdout
    frame = load(tmp_path / "results").set_index("policy")
    assert set(frame.index) == {"full", "h2o"}
    assert set(frame.main_metric) == {"accuracy"}
    for name in ("accuracy", "accuracy_at_0", "accuracy_at_1"):
        assert frame[name].between(0, 1).all()
    assert frame.loc["h2o", "k_max"] < frame.loc["full", "k_min"]
    assert len(load_samples(tmp_path / "results")) == 2 * 4
