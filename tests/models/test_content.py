"""What tells models apart: the bytes of a folder, the commit of a hub repository."""

import pytest
from huggingface_hub import constants

from h2o_lab.config import ModelConfig
from h2o_lab.errors import UserError
from h2o_lab.models import content, model_fingerprint
from tests.support.models import character_tokenizer, random_model

HUB = ModelConfig("x", "hub", id="owner/name")


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    """A cache of the hub; call it with the commit that the main branch stands for."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(content, "load_config", lambda cfg: None)
    repository = tmp_path / "models--owner--name"
    (repository / "refs").mkdir(parents=True)

    def move(commit: str) -> None:
        (repository / "snapshots" / commit).mkdir(parents=True, exist_ok=True)
        (repository / "snapshots" / commit / "config.json").write_text("{}")
        (repository / "refs" / "main").write_text(commit)

    return move


def test_a_branch_that_moved_is_another_model(hub_cache):
    hub_cache("a" * 40)
    first = model_fingerprint(HUB)
    hub_cache("b" * 40)
    assert model_fingerprint(HUB) != first
    assert model_fingerprint(ModelConfig("y", "hub", id="owner/name", revision="a" * 40)) == first


def test_a_commit_that_is_unknown_is_refused(hub_cache):
    with pytest.raises(UserError, match="its commit is unknown"):
        model_fingerprint(HUB)


def test_a_folder_is_known_by_every_byte_and_not_by_its_place(tmp_path):
    for name in ("one", "two"):
        random_model("llama").save_pretrained(tmp_path / name)
        character_tokenizer().save_pretrained(tmp_path / name)
    one, two = (ModelConfig(name, "local", path=str(tmp_path / name)) for name in ("one", "two"))
    first = model_fingerprint(one)
    assert model_fingerprint(two) == first
    weights = tmp_path / "two" / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[len(changed) // 2] ^= 1
    weights.write_bytes(changed)
    assert model_fingerprint(two) != first
    assert model_fingerprint(one) == first
    (tmp_path / "one" / "chat_template.jinja").write_text("{{ messages }}")
    assert model_fingerprint(one) != first
