"""Perplexity tasks: against dense attention by hand, in windows and streams, interrupted and resumed."""

import json
import math

import pytest
import torch

from h2o_lab.cells import Journal
from h2o_lab.config import DataConfig, PerplexityConfig
from h2o_lab.data.texts import load_texts
from h2o_lab.errors import UserError
from h2o_lab.policies import H2O, Budget, Full, GlobalH2, H2OStreaming, Local, Streaming
from h2o_lab.tasks import perplexity as kind
from h2o_lab.tasks.losses import read_chunks
from h2o_lab.tasks.reader import Reader
from tests.support.models import character_tokenizer, random_model

TEXT = "the quick brown fox jumps over the lazy dog, and then it sleeps in the sun. " * 4


def task(**fields) -> PerplexityConfig:
    return PerplexityConfig(name="text", **fields)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text(TEXT)
    return str(path)


def evaluate(settings: PerplexityConfig, policy, budget=None, family="llama", **options):
    texts = kind.load(settings, DataConfig(source="packaged"))
    return kind.evaluate(
        texts, settings, budget, Reader(random_model(family), policy, **options), character_tokenizer()
    )


@torch.no_grad()
def dense_nats(model, ids: torch.Tensor) -> torch.Tensor:
    """float64 [T - 1], by the model itself in one forward pass."""
    logprobs = model(ids[None]).logits[0, :-1].double().log_softmax(-1)
    return -logprobs.gather(1, ids[1:, None]).squeeze(1)


@pytest.mark.parametrize("mode", ["windowed", "streaming"])
@pytest.mark.parametrize("family", ["llama", "opt", "gpt_neox"])
def test_the_full_cache_equals_one_dense_pass(file, mode, family):
    tokenizer, model = character_tokenizer(), random_model(family)
    ids = tokenizer(TEXT, return_tensors="pt").input_ids[0][:200]
    found = evaluate(task(path=file, mode=mode, tokens=200, window=200, chunk=33, every=50), Full(), family=family)
    nats = dense_nats(model, ids)
    assert found.metrics["perplexity"] == pytest.approx(nats.mean().exp().item(), rel=1e-4)
    size = len(tokenizer.decode(ids[1:]).encode())
    assert found.metrics["bits_per_byte"] == pytest.approx(nats.sum().item() / math.log(2) / size, rel=1e-4)
    assert found.tokens_scored == 199
    if mode == "streaming":
        assert [sample["tokens"] for sample in found.samples] == [50, 100, 150]
        for i, sample in enumerate(found.samples):
            assert sample["perplexity"] == pytest.approx(nats[50 * i : 50 * i + 50].mean().exp().item(), rel=1e-4)


@pytest.mark.parametrize(("window", "stride"), [(50, None), (50, 20), (64, 63), (7, 3), (500, None)])
def test_windows_score_every_token_once(file, window, stride):
    model = random_model("llama")
    ids = character_tokenizer()(TEXT, return_tensors="pt").input_ids[0][:180]
    found = evaluate(task(path=file, tokens=180, window=window, stride=stride), Full())
    total, done, start = 0.0, 1, 0
    step = stride or min(window, 180) - 1
    while done < 180:
        end = min(start + window, 180)
        begin = start if end - start == min(window, 180) else max(0, 180 - window)
        total += dense_nats(model, ids[begin:end])[done - end :].sum().item()
        done, start = end, start + step
    assert found.tokens_scored == 179
    assert found.metrics["nats_per_token"] == pytest.approx(total / 179, rel=1e-4)


def test_chunks_and_batches_change_nothing(file):
    one, other = (
        evaluate(task(path=file, mode="streaming", tokens=250, chunk=chunk), H2O(), Budget(tokens=20))
        for chunk in (1, 77)
    )
    assert one.metrics["perplexity"] == pytest.approx(other.metrics["perplexity"], rel=1e-4)
    alone, together = (
        evaluate(task(path=file, tokens=250, window=40, batch_tokens=size), H2O(), Budget(fraction=0.3))
        for size in (40, 4000)
    )
    assert alone.metrics["perplexity"] == pytest.approx(together.metrics["perplexity"], rel=1e-4)
    assert set(alone.caps) == set(together.caps) == {12}


@pytest.mark.parametrize("positions", ["original", "rolling"])
@pytest.mark.parametrize("policy", [H2OStreaming(), Streaming(), Local(), H2O(scope="layer")], ids=lambda p: p.name)
def test_an_interrupted_stream_goes_on_exactly(file, tmp_path, monkeypatch, policy, positions):
    settings = {"path": file, "mode": "streaming", "chunk": 16, "every": 40, "checkpoint_every": 48}
    whole = evaluate(task(**settings), policy, Budget(tokens=20), positions=positions)
    stopped = task(**settings)
    journal = tmp_path / "journal.jsonl"
    read = 0

    def killed(*args, **kwargs):
        nonlocal read
        for part in read_chunks(*args, **kwargs):
            if read == 7:
                raise KeyboardInterrupt
            read += 1
            yield part

    with monkeypatch.context() as patch:
        patch.setattr(kind, "read_chunks", killed)
        with pytest.raises(KeyboardInterrupt):
            evaluate(stopped, policy, Budget(tokens=20), positions=positions, journal=Journal(journal))
    begun = []

    def watched(*args, **kwargs):
        for part in read_chunks(*args, **kwargs):
            begun.append(part.first)
            yield part

    with monkeypatch.context() as patch:
        patch.setattr(kind, "read_chunks", watched)
        resumed = evaluate(stopped, policy, Budget(tokens=20), positions=positions, journal=Journal(journal))
    assert begun[0] == 96, "the last checkpoint before the seventh chunk"
    assert resumed.tokens_computed == whole.tokens_computed
    assert resumed.metrics == pytest.approx(whole.metrics, rel=1e-6)
    assert [s["perplexity"] for s in resumed.samples] == pytest.approx([s["perplexity"] for s in whole.samples])


def test_a_stream_that_was_read_is_not_read_again(file, tmp_path, monkeypatch):
    settings = task(path=file, mode="streaming", chunk=16, every=40)
    first = evaluate(settings, H2O(), Budget(tokens=20), journal=Journal(tmp_path / "journal.jsonl"))
    monkeypatch.setattr(kind, "read_chunks", lambda *_, **__: pytest.fail("it was read again"))
    again = evaluate(settings, H2O(), Budget(tokens=20), journal=Journal(tmp_path / "journal.jsonl"))
    assert (again.metrics, again.samples) == (first.metrics, first.samples)
    assert again.tokens_computed == first.tokens_computed


def test_windows_that_were_read_are_not_read_again(file, tmp_path, monkeypatch):
    settings = task(path=file, window=32, batch_tokens=64)
    journal = Journal(tmp_path / "journal.jsonl")
    first = evaluate(settings, H2O(), Budget(tokens=9), journal=journal)
    assert len(journal) > 1
    monkeypatch.setattr(kind, "read_chunks", lambda *_, **__: pytest.fail("they were read again"))
    again = evaluate(settings, H2O(), Budget(tokens=9), journal=Journal(tmp_path / "journal.jsonl"))
    assert (again.metrics, again.samples) == (first.metrics, first.samples)
    assert again.tokens_computed == first.tokens_computed


def test_a_broken_checkpoint_is_a_warning_and_the_stream_begins_anew(file, tmp_path, monkeypatch, caplog):
    settings = task(path=file, mode="streaming", chunk=16, every=40, checkpoint_every=48)
    whole = evaluate(settings, H2O(), Budget(tokens=20))
    (tmp_path / "x").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "note", lambda *_: None)
        evaluate(settings, H2O(), Budget(tokens=20), journal=Journal(tmp_path / "x" / "journal.jsonl"))
    (checkpoint,) = (tmp_path / "x").glob("*.safetensors")
    checkpoint.write_bytes(b"rubbish")
    again = evaluate(settings, H2O(), Budget(tokens=20), journal=Journal(tmp_path / "x" / "journal.jsonl"))
    assert again.metrics == whole.metrics
    assert "cannot be read" in caplog.text


def test_numbers_that_are_not_finite_are_refused(file):
    model = random_model("llama")
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    settings = task(path=file, window=32)
    reader = Reader(model, H2O())
    with pytest.raises(UserError, match="not finite"):
        kind.evaluate(
            kind.load(settings, DataConfig("packaged")), settings, Budget(tokens=9), reader, character_tokenizer()
        )


@pytest.mark.parametrize(
    ("fields", "policy", "message"),
    [
        ({"mode": "backwards"}, H2O(), "task.mode=backwards is unknown"),
        ({"window": 1}, H2O(), "task.window=1 is out of range"),
        ({"window": 8, "stride": 8}, H2O(), "must be below task.window=8"),
        ({"mode": "streaming"}, GlobalH2(), "cannot stream"),
        ({"path": "/nowhere"}, H2O(), "is neither a file nor a folder"),
    ],
)
def test_refused_settings(file, fields, policy, message):
    with pytest.raises(UserError, match=message):
        kind.check(task(**{"path": file} | fields), DataConfig(source="packaged"), policy)


def test_windows_read_as_prompts_are_refused(file):
    """They would attend in full, and nothing would be evicted before the last token is scored."""
    with pytest.raises(UserError, match="nothing would be evicted: use prefill=evict"):
        kind.check(task(path=file), DataConfig(source="packaged"), H2O(), "full")
    kind.check(task(path=file, mode="streaming"), DataConfig(source="packaged"), H2O(), "full")
    kind.check(task(path=file), DataConfig(source="packaged"), Full(), "full")


def test_a_text_longer_than_the_position_table_is_refused(file):
    with pytest.raises(UserError, match="needs 302 positions and the model's table has 256"):
        evaluate(task(path=file, mode="streaming", tokens=303), H2O(), Budget(tokens=20), family="opt")


def test_a_title_chooses_among_the_texts(tmp_path):
    for name in ("Emma", "Middlemarch"):
        (tmp_path / f"{name}.txt").write_text(f"{name} is a novel", encoding="utf-8")
    found = kind.load(task(path=str(tmp_path), title="middle"), DataConfig(source="folder"))
    assert [text.title for text in found.texts] == ["Middlemarch"]
    with pytest.raises(UserError, match=r"task.title=Ulysses is in no title: there are Emma; Middlemarch\."):
        kind.load(task(path=str(tmp_path), title="Ulysses"), DataConfig(source="folder"))


def test_texts_of_folders(tmp_path):
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "books.jsonl").write_text(json.dumps({"title": "One", "text": "Once."}) + "\n")
    (tmp_path / "wikitext2").mkdir()
    (tmp_path / "wikitext2" / "wiki.test.raw").write_text(" = Head = \n")
    source = DataConfig(source="folder", dir=str(tmp_path))
    texts, origin = load_texts("pg19", source)
    assert (texts[0].title, texts[0].text) == ("One", "Once.")
    assert origin.endswith("books/books.jsonl")
    assert load_texts("wikitext", source)[0][0].text == " = Head = \n"
    (tmp_path / "books" / "books.jsonl").write_text('{"title": "no text"}\n')
    with pytest.raises(UserError, match="line 1: the line is no JSON object with a text"):
        load_texts("pg19", source)
    with pytest.raises(UserError, match="has no wikitext, only pg19"):
        load_texts("wikitext", DataConfig(source="packaged"))
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match="is not UTF-8: byte 3"):
        load_texts("text", source, str(tmp_path / "latin.txt"))
