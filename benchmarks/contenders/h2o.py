"""h2o_lab's policy `h2o`: k entries at most, half of them the latest, the others those with the most attention.

With `prefill: evict` the cap holds inside the prompt too, token by token. With `prefill: full` the prompt attends
to itself in full, and is then cut to k. Either way every later token takes the place of another.
"""

from __future__ import annotations

from typing import Any

import numba
import torch
from protocol import Build, Contender, load, serve
from transformers import PreTrainedModel

from h2o_lab.attention import EvictionCache, eviction_attention
from h2o_lab.policies import H2O


def prepare(options: dict[str, Any]) -> tuple[PreTrainedModel, Build]:
    numba.set_num_threads(options["threads"])
    torch.set_num_threads(options["threads"])  # numba's start sets them too

    def build(model: PreTrainedModel, prompt: int, k: int) -> Contender:
        cache = EvictionCache(model.config.num_hidden_layers, H2O(), k, prefill=options["prefill"])
        return Contender(
            cache, lambda held: int(held.kv_bytes_resident.sum()), eviction_attention, eviction_attention
        )

    return load(options["model"], "sdpa"), build


if __name__ == "__main__":
    serve(["h2o_lab", "numba"], prepare)
