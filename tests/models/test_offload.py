"""Models that are split over memory and disk compute what whole ones do."""

import pytest
import torch
from hydra import compose, initialize_config_dir

from h2o_lab.config import ModelConfig, config_dir, register
from h2o_lab.errors import UserError
from h2o_lab.models import load_model
from h2o_lab.models.placement import most_memory, parse_device
from h2o_lab.policies import H2O, Budget, Full, GlobalH2, Streaming
from h2o_lab.tasks.generation import Sampling, generate_all
from h2o_lab.tasks.losses import token_losses
from h2o_lab.tasks.reader import Reader
from tests.support.models import character_tokenizer, random_model

MEMORY = {"cpu": "120KB"}
"""Of the 230 kB that the model has."""


@pytest.fixture(scope="module", params=["llama", "opt", "gpt_neox"])
def pair(request, tmp_path_factory):
    """The same model whole, and split over memory and disk."""
    folder = tmp_path_factory.mktemp(request.param)
    random_model(request.param).save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    whole = load_model(ModelConfig("whole", "local", path=str(folder)))
    split = load_model(ModelConfig("split", "local", path=str(folder), device_map="auto", max_memory=MEMORY))
    places = {parameter.device.type for parameter in split.model.parameters()}
    assert places == {"cpu", "meta"}, "a part is on the disk, a part is not"
    return whole, split


@pytest.mark.parametrize("policy", [Full(), H2O(), H2O(scope="model"), Streaming(), GlobalH2()], ids=repr)
def test_losses_are_the_same(pair, policy):
    ids = torch.arange(2 * 40).view(2, 40) * 7 % 97
    found = []
    for loaded in pair:
        reader = Reader(loaded.model, policy)
        with reader.open():
            found.append(token_losses(reader, ids, 12 if policy.budgeted else None))
    torch.testing.assert_close(found[1], found[0])


def test_rolling_positions_and_generation_are_the_same(pair):
    whole, _ = pair
    positions = "original" if whole.model.config.model_type == "opt" else "rolling"
    texts = []
    for loaded in pair:
        reader = Reader(loaded.model, Streaming(), positions=positions)
        prompts = [list(range(5, 30)), list(range(40, 50))]
        found = generate_all(
            reader, loaded.tokenizer, prompts, Budget(tokens=9), Sampling(12), batch_tokens=512, label="x"
        )
        texts.append([result.tokens for result in found.results])
    assert texts[0] == texts[1]
    assert any(texts[0])


def test_max_memory_without_a_device_map_is_refused():
    with pytest.raises(UserError, match="model.max_memory is for a model that is split: set model.device_map=auto"):
        load_model(ModelConfig("x", "local", path="/", max_memory=MEMORY))


def test_max_memory_can_be_said_on_the_command_line():
    register()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("config", ["model.device_map=auto", "+model.max_memory={0: 40GiB, cpu: 1.5GB}"]).model
    assert parse_device(cfg) is None
    assert most_memory(cfg) == {0: "40GiB", "cpu": "1.5GB"}
    cfg.max_memory["cpu"] = "lots"
    with pytest.raises(UserError, match="model.max_memory of cpu is lots: it must be a size such as 40GiB"):
        parse_device(cfg)
