"""Data of the Hugging Face hub: what is asked of it, what its rows become, and what its absence says."""

import pytest
from datasets import Dataset

from h2o_lab import hub
from h2o_lab.config import DataConfig, PerplexityConfig, SummarisationConfig
from h2o_lab.data import data_access, load_documents, load_rows
from h2o_lab.errors import UserError
from h2o_lab.policies import H2O
from h2o_lab.tasks import perplexity, summarisation

HUB = DataConfig("hub")
NEWS = [{"document": f"long {i}", "summary": f"short {i}", "id": str(i)} for i in range(3)]
ARTICLES = [{"article": f"long {i}", "highlights": f"short {i}", "id": str(i)} for i in range(3)]
BOOK = {"short_book_title": "A Book", "publication_date": 1900, "url": "x", "text": "It was dark."}


@pytest.fixture
def hub_has(monkeypatch):
    """Put repositories with one table for every split on a stand-in for the hub; returns what was asked of it."""
    import datasets

    asked = []

    def put(tables, scripts=()):
        def load_dataset(path, name=None, *, split, revision=None):
            asked.append((path, name, split, revision))
            if path in scripts and revision != "refs/convert/parquet":
                raise RuntimeError(f"Dataset scripts are no longer supported, but found {path}.py")
            return Dataset.from_list(tables[path])

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        monkeypatch.setattr(hub, "hub_reachable", lambda: True)
        return asked

    return put


@pytest.mark.parametrize("scripts", [(), ("EdinburghNLP/xsum",)], ids=["files", "script"])
def test_xsum_of_the_hub(hub_has, scripts):
    asked = hub_has({"EdinburghNLP/xsum": NEWS}, scripts)
    task = SummarisationConfig(name="xsum", prompt="{document}", num_fewshot=2, limit=2)
    summarisation.check(task, HUB, H2O())
    assert not asked, "a check asks nothing of the hub"
    found = summarisation.load(task, HUB)
    assert [row["document"] for row in found.rows] == ["long 0", "long 1"]
    assert len(found.pool) == 3
    assert found.origin == "hub: EdinburghNLP/xsum, split test"
    assert {split for _, _, split, _ in asked} == {"validation", "test"}


def test_cnn_dm_of_the_hub_has_the_fields_of_a_summary(hub_has):
    asked = hub_has({"abisee/cnn_dailymail": ARTICLES})
    rows = load_documents("cnn_dm", HUB)
    assert rows.splits["test"][1] == {"document": "long 1", "summary": "short 1"}
    assert ("abisee/cnn_dailymail", "3.0.0", "test", None) in asked


def test_books_of_the_hub(hub_has):
    asked = hub_has({"emozilla/pg19": [BOOK, BOOK | {"short_book_title": "Another"}]}, ["emozilla/pg19"])
    found = perplexity.load(PerplexityConfig(name="pg19", title="another"), HUB)
    assert [(text.title, text.text) for text in found.texts] == [("Another", "It was dark.")]
    assert found.origin == "hub: emozilla/pg19, split test"
    assert asked[-1] == ("emozilla/pg19", None, "test", "refs/convert/parquet")


def test_wikitext_of_the_hub_is_one_text(hub_has):
    asked = hub_has({"Salesforce/wikitext": [{"text": "= A =\n"}, {"text": ""}, {"text": " b \n"}]})
    found = perplexity.load(PerplexityConfig(name="wikitext"), HUB)
    assert [text.text for text in found.texts] == ["= A =\n b \n"]
    assert asked == [("Salesforce/wikitext", "wikitext-103-raw-v1", "test", None)]


def test_other_errors_of_loading_pass_through(hub_has):
    hub_has({})
    with pytest.raises(KeyError):
        load_documents("xsum", HUB)


@pytest.mark.parametrize(
    ("load", "instead"),
    [
        (lambda: load_documents("xsum", HUB), "data=packaged or data=folder"),
        (lambda: load_documents("cnn_dm", HUB), "data=folder"),
        (
            lambda: perplexity.load(PerplexityConfig(name="pg19"), HUB),
            "data=folder data.dir=FOLDER or data=packaged",
        ),
        (lambda: perplexity.load(PerplexityConfig(name="wikitext"), HUB), "data=folder"),
    ],
    ids=["xsum", "cnn_dm", "pg19", "wikitext"],
)
def test_without_a_hub_every_task_names_what_needs_none(monkeypatch, load, instead):
    from datasets import config

    monkeypatch.setattr(hub, "hub_reachable", lambda: False)
    monkeypatch.setattr(config, "HF_HUB_OFFLINE", False)
    with pytest.raises(UserError, match=f"cannot be reached.*or use {instead}"):
        load()


def test_hub_rows_are_left_to_lm_eval():
    assert load_rows("piqa", DataConfig("hub")) is None


def test_unreachable_hub_is_one_sentence(monkeypatch):
    from datasets import config, load_dataset

    monkeypatch.setattr(hub, "hub_reachable", lambda: False)
    monkeypatch.setattr(config, "HF_HUB_OFFLINE", False)
    with (
        pytest.raises(
            UserError, match=r"data of piqa: .*cannot be reached.*data=packaged or data=folder data\.dir="
        ),
        data_access("piqa"),
    ):
        load_dataset("h2o-lab/does-not-exist")
    assert config.HF_HUB_OFFLINE is False  # the offline mode ends with the body


def test_errors_that_are_not_the_hubs_pass_through():
    with pytest.raises(ZeroDivisionError), data_access("piqa"):
        raise ZeroDivisionError


def test_dataset_that_the_hub_lacks_is_one_sentence():
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub.errors import RepositoryNotFoundError

    def load():
        try:
            raise RepositoryNotFoundError.__new__(RepositoryNotFoundError)
        except RepositoryNotFoundError as error:
            raise DatasetNotFoundError("Dataset 'a/b' doesn't exist") from error

    message = r"the data of copa: the hub has no such repository.*, or use data=folder data\.dir=FOLDER\."
    with pytest.raises(UserError, match=message), data_access("copa"):
        load()
