"""Attention that is recorded while a small model reads."""

import torch

from h2o_lab.config import StatsConfig
from h2o_lab.stats import Recorder
from h2o_lab.tasks.reader import Reader
from tests.support.models import character_tokenizer, random_model


def recorded(texts, policy, k=None, model=None, prefill="evict", **settings) -> Recorder:
    """Read a batch of texts of any length under a policy."""
    recorder = Recorder(StatsConfig(**settings), character_tokenizer())
    reader = Reader(model or random_model("llama"), policy, prefill, recorder=recorder)
    wanted = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.bool)
    budget = [k] * len(texts) if k is not None else None
    with reader.open():
        _, cache = reader.start(texts, wanted, budget, [len(one) for one in texts])
    assert cache.watch is None
    assert all(state.evicted_at is None for state in cache.states)
    return recorder
