"""h2o_lab: KV-cache eviction policies for Hugging Face causal language models, measured like with like."""

__version__ = "0.1.0"
