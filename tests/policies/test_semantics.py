"""What every policy computes under `SEMANTICS`: results on disk are taken over as long as these numbers hold.

If a change is meant, raise `h2o_lab.cells.identity.SEMANTICS` and store the new numbers:

    python tests/policies/test_semantics.py
"""

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from h2o_lab.cells.identity import SEMANTICS
from h2o_lab.policies import ALL
from h2o_lab.tasks.losses import token_losses
from h2o_lab.tasks.reader import Reader

FILE = Path(__file__).parents[1] / "golden" / f"semantics_{SEMANTICS}.json"
NAMES = [kind.name for kind in ALL]


def model() -> LlamaForCausalLM:
    """Two layers whose weights are written down, not drawn, so that no library's generator matters."""
    size = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    made = LlamaForCausalLM(LlamaConfig(**size, num_attention_heads=4, num_key_value_heads=2))
    with torch.no_grad():
        for number, weight in enumerate(made.parameters()):
            if weight.dim() == 2:
                index = torch.arange(weight.numel(), dtype=torch.float64)
                weight.copy_((torch.sin(index * 12.9898 + number) * 0.5).view(weight.shape))
    return made.eval()


def loss(name: str) -> float:
    """Mean loss of tokens 1 to 95 of two texts under a policy with k = 24, nats."""
    (policy,) = (kind() for kind in ALL if kind.name == name)
    ids = (torch.arange(192) ** 2 * 7 % 61).view(2, 96)
    reader = Reader(model(), policy, "full" if policy.compresses_prompt else "evict", seed=1)
    with reader.open():
        return token_losses(reader, ids, 24 if policy.budgeted else None, chunk=48).double().mean().item()


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_computes_what_its_version_says(name):
    known = json.loads(FILE.read_text())
    assert loss(name) == pytest.approx(known[name], rel=5e-6), "see the head of this file"


def test_the_numbers_tell_policies_apart():
    known = json.loads(FILE.read_text())
    assert set(known) == set(NAMES)
    # h2o_real_drop differs from h2o by one entry, random and full cannot meet; no two policies agree here
    assert len({f"{value:.5f}" for value in known.values()}) >= len(NAMES) - 1


if __name__ == "__main__":
    numbers = {name: loss(name) for name in NAMES}
    assert all(map(math.isfinite, numbers.values()))
    FILE.write_text(json.dumps(numbers, indent=1) + "\n")
