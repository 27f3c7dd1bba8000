"""Where a model's files are: a wheel, the hub or a folder."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from h2o_lab.config import ModelConfig
from h2o_lab.errors import UserError
from h2o_lab.hub import hub_access
from h2o_lab.models.smollm2 import smollm2_folder

SOURCES = ("packaged", "hub", "local")
INSTEAD_OF_HUB = "model=smollm2_135m or model=local model.path=FOLDER"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def label(cfg: ModelConfig) -> str:
    """The model as the user named it, for messages."""
    if cfg.source == "hub":
        return f"model.id={cfg.id}"
    return f"model.path={cfg.path}" if cfg.source == "local" else f"model={cfg.name}"


@contextmanager
def located(cfg: ModelConfig, check: Iterable[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Folder or hub repository of the model, and the keyword arguments that every `from_pretrained` gets.

    Args:
        cfg: the model.
        check: for the packaged model, the files to compare with their checksums; None for all.

    Raises:
        UserError: an unknown source, a missing key or folder, or a hub that does not have the model.
    """
    options: dict[str, Any] = {"trust_remote_code": cfg.trust_remote_code}
    if cfg.source == "packaged":
        yield str(smollm2_folder(check)), options | {"local_files_only": True}
    elif cfg.source == "local":
        yield str(_local_folder(cfg)), options | {"local_files_only": True}
    elif cfg.source == "hub":
        repository = _repository(cfg)
        with hub_access(label(cfg), INSTEAD_OF_HUB):
            yield repository, options | ({"revision": cfg.revision} if cfg.revision else {})
    else:
        raise UserError(f"model.source={cfg.source} is unknown: allowed are {', '.join(SOURCES)}.")


def _local_folder(cfg: ModelConfig) -> Path:
    if not cfg.path:
        raise UserError("model.source=local needs model.path=FOLDER, a folder written by save_pretrained.")
    folder = Path(cfg.path).expanduser()
    if not folder.is_dir():
        raise UserError(f"model.path={cfg.path} is not a folder: it has to be one written by save_pretrained.")
    if not (folder / "config.json").is_file():
        raise UserError(f"model.path={cfg.path} holds no config.json: it has to be written by save_pretrained.")
    for part, files in {"weights": WEIGHTS, "tokenizer": TOKENIZERS}.items():
        if not any((folder / name).is_file() for name in files):
            raise UserError(f"model.path={cfg.path} holds no {part}: allowed are {', '.join(files)}.")
    return folder


def _repository(cfg: ModelConfig) -> str:
    if not cfg.id:
        raise UserError("model.source=hub needs model.id=OWNER/NAME, a repository of the Hugging Face hub.")
    if Path(cfg.id).is_dir():
        raise UserError(f"model.id={cfg.id} is a folder here: use model=local model.path={cfg.id}.")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", cfg.id):
        raise UserError(f"model.id={cfg.id} is no name of a hub repository: it has to be OWNER/NAME.")
    return cfg.id
