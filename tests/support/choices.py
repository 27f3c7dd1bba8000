"""What the tests of scoring share: random choices, and the contract for one by itself."""

from itertools import takewhile

import torch

from h2o_lab.attention import EvictionCache, eviction_attention
from h2o_lab.attention.feeding import column_sums
from h2o_lab.policies import ALL
from h2o_lab.tasks.scoring import Choice

EVERY = [kind() for kind in ALL if kind.budgeted and not kind.compresses_prompt]


def draw(seed: int, length: int) -> tuple[int, ...]:
    g = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(3, 97, (length,), generator=g).tolist())


def common(contexts) -> tuple[int, ...]:
    """Longest common prefix."""
    columns = zip(*contexts, strict=False)
    return tuple(first for first, *others in takewhile(lambda column: len(set(column)) == 1, columns))


@torch.no_grad()
def alone(
    model, policy, k: int, choice: Choice, prefill: str, n: int | None = None, positions: str = "original"
) -> tuple[float, bool]:
    """The contract, choice by choice: log-likelihood and whether it is the greedy continuation."""
    ids = torch.tensor([choice.tokens])[:, :-1]
    prompt = len(choice.context)
    parts = [(0, prompt), (prompt, len(choice.tokens) - 1)]
    if not policy.causal:
        parts = [(0, len(choice.tokens) - 1)]
    elif policy.by_step:
        parts = [parts[0]] if prefill == "full" else []
        parts += [(t, t + 1) for t in range(prompt if prefill == "full" else 0, len(choice.tokens) - 1)]
    with eviction_attention(model, positions):
        cache = EvictionCache(
            model.config.num_hidden_layers,
            policy,
            k,
            prefill=prefill,
            executor="reference",
            lengths=[n or prompt],
            given=column_sums(model, policy, input_ids=ids) if policy.two_passes else None,
        )
        outs = [model(ids[:, first:last], cache=cache).logits for first, last in parts if last > first]
    logprobs = torch.cat(outs, dim=1)[0, prompt - 1 :].log_softmax(-1)
    target = torch.tensor(choice.continuation)
    return logprobs.gather(1, target[:, None]).sum().item(), bool((logprobs.argmax(-1) == target).all())
