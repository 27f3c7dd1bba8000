"""NVIDIA/kvpress: ObservedAttentionPress, and a DecodingPress around it.

The press lets the prompt attend in full and, layer by layer, keeps the k entries with the largest mean attention of
the queries that saw them. It needs transformers' eager attention, which makes a T × T map of every head. On its own
it does nothing afterwards: the cache grows by every token. With `interval`, a DecodingPress brings the cache back
to k entries after every so many tokens. What its base press is then given is the attention of the latest query,
which it divides by the number of tokens from an entry to the end.
"""

from __future__ import annotations

from typing import Any

from kvpress import DecodingPress, ObservedAttentionPress, PrefillDecodingPress
from protocol import Build, Contender, dynamic_bytes, load, serve
from transformers import DynamicCache, PreTrainedModel


def prepare(options: dict[str, Any]) -> tuple[PreTrainedModel, Build]:
    interval = options.get("interval")

    def build(model: PreTrainedModel, prompt: int, k: int) -> Contender:
        # kvpress keeps int(prompt * (1 - ratio)): the half keeps that k whatever the rounding
        reading = ObservedAttentionPress(compression_ratio=1 - (k + 0.5) / prompt)
        cache = DynamicCache(config=model.config)
        if interval is None:
            return Contender(cache, dynamic_bytes, reading)
        decoding = DecodingPress(
            ObservedAttentionPress(), compression_interval=interval, target_size=k, hidden_states_buffer_size=0
        )
        both = PrefillDecodingPress(reading, decoding)
        return Contender(cache, dynamic_bytes, both, both)

    return load(options["model"], "eager"), build


if __name__ == "__main__":
    serve(["kvpress"], prepare)
