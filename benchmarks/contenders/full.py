"""Transformers' DynamicCache with SDPA: every key and value is kept, whatever the budget."""

from __future__ import annotations

from typing import Any

from protocol import Build, Contender, dynamic_bytes, load, serve
from transformers import DynamicCache, PreTrainedModel


def build(model: PreTrainedModel, prompt: int, k: int) -> Contender:
    return Contender(DynamicCache(config=model.config), dynamic_bytes)


def prepare(options: dict[str, Any]) -> tuple[PreTrainedModel, Build]:
    return load(options["model"], "sdpa"), build


if __name__ == "__main__":
    serve([], prepare)
