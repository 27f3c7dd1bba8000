"""The compiled kernels give the same bits in every process, the one that finds numba's cache empty among them."""

import os
import subprocess
import sys
from pathlib import Path

RUN = """
import hashlib
import torch
from h2o_lab.attention import Caps, LayerState, attend, passage, step
from h2o_lab.policies import H2O

torch.manual_seed(0)
q, k, v = torch.randn(2, 8, 100, 8), torch.randn(2, 4, 100, 8), torch.randn(2, 4, 100, 8)
found = hashlib.sha256()
for scope in ("head", "layer"):
    policy = H2O(scope=scope)
    state = LayerState.empty(policy, Caps.of(policy, [40, 30]), k, v)
    for tokens in (slice(0, 99), slice(99, 100)):
        out = attend(q[:, :, tokens], k[:, :, tokens], v[:, :, tokens], state, scale=0.35, executor="numba")
        found.update(out.numpy().tobytes() + state.scores.numpy().tobytes())
print(found.hexdigest())
for kernel in (passage._passage, step._step):
    print(len(kernel.signatures), sum(kernel.stats.cache_misses.values()))
"""


def test_a_process_that_compiles_and_one_that_loads_agree_to_the_bit(tmp_path):
    root = str(Path(__file__).resolve().parents[2])
    surroundings = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": root}
    said = [
        subprocess.run([sys.executable, "-c", RUN], env=surroundings, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    first, second = (done.stdout.split() for done in said)
    assert first == second
    assert first[1:] == ["1", "0"] * 2, "one form of each kernel, and this process compiled none"
