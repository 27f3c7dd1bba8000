"""Models of the Hugging Face hub: how they are named, and what its absence and its errors say."""

import pytest

from h2o_lab import hub
from h2o_lab.config import ModelConfig
from h2o_lab.errors import UserError
from h2o_lab.hub import hub_access
from h2o_lab.models import load_config, load_model


def from_hub(name: str | None) -> ModelConfig:
    return ModelConfig("x", "hub", id=name)


def test_hub_needs_a_name(tmp_path):
    with pytest.raises(UserError, match=r"model\.source=hub needs model\.id=OWNER/NAME"):
        load_config(from_hub(None))
    with pytest.raises(UserError, match="is no name of a hub repository"):
        load_config(from_hub("what is this"))
    with pytest.raises(UserError, match="is a folder here: use model=local"):
        load_config(from_hub(str(tmp_path)))


@pytest.mark.parametrize("load", [load_config, load_model])
def test_unreachable_hub_is_one_sentence(monkeypatch, load):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "hub_reachable", lambda: False)
    message = r"model\.id=h2o-lab/none: .*cannot be reached.*use model=smollm2_135m or model=local model\.path="
    with pytest.raises(UserError, match=message):
        load(from_hub("h2o-lab/none"))
    assert constants.HF_HUB_OFFLINE is False  # the offline mode ends with the loading


def test_probe_says_no_in_offline_mode(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.hub_reachable() is False


def test_probe_says_no_where_nothing_answers(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert hub.hub_reachable() is False


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("GatedRepoError", "gated: accept its terms on the hub and set HF_TOKEN, or use B"),
        ("RepositoryNotFoundError", "no such repository, or it is private: set HF_TOKEN, or use B"),
        ("RevisionNotFoundError", "no such revision"),
        ("LocalEntryNotFoundError", "cannot be reached"),
    ],
)
def test_errors_of_the_hub_are_told_apart(kind, message):
    from huggingface_hub import errors

    def load():
        try:
            raise error.__new__(error)
        except error as cause:
            raise OSError("what transformers says") from cause

    error = getattr(errors, kind)
    with pytest.raises(UserError, match=f"A: .*{message}"), hub_access("A", "B"):
        load()


def test_errors_that_are_not_the_hubs_pass_through():
    with pytest.raises(ZeroDivisionError), hub_access("A", "B"):
        raise ZeroDivisionError
