"""The compiled kernels on the disk, so that every process runs the same machine code.

Numba runs what it has just compiled in another form than what it reads back from its cache; both are right, and
their sums differ in the last bits. So a process never runs what it has compiled itself: where the cache is empty,
another process fills it first.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import torch

import h2o_lab
from h2o_lab.attention.caps import Caps
from h2o_lab.attention.state import LayerState
from h2o_lab.policies import H2O

log = logging.getLogger(__name__)

COMPILE = "from h2o_lab.attention.kernel import touch; touch()"


@cache
def ready() -> None:
    """Fill numba's cache where it lacks a kernel; the first time this takes about 40 s."""
    from h2o_lab.attention import arrays, lane, passage, rolling, rules, simd, step, tiles

    modules = (arrays, lane, passage, rolling, rules, simd, step, tiles)
    newest = max(Path(str(module.__file__)).stat().st_mtime for module in modules)
    folder = passage._passage.stats.cache_path
    if folder is not None:
        stored = [list(Path(folder).glob(f"{name}-*.nbi")) for name in ("step._step", "passage._passage")]
        if all(any(file.stat().st_mtime > newest for file in files) for files in stored):
            return
        # numba looks at the file of a function alone, not at those of the functions that it calls
        for module in modules:
            for file in Path(folder).glob(f"{module.__name__.rpartition('.')[2]}.*.nbi"):
                file.unlink(missing_ok=True)
    log.info("compiling the CPU kernels (once, about 40 s)")
    place = os.pathsep.join([str(Path(h2o_lab.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", COMPILE]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": place}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        log.debug("the kernels are compiled in this process, as another could not: %s", done.stderr)


def touch() -> None:
    """Run each kernel once on next to nothing: they are then compiled, or loaded."""
    from h2o_lab.attention import compiled

    policy = H2O()
    for length in (1, 2):
        token = torch.zeros(1, 1, length, 8)
        state = LayerState.empty(policy, Caps.of(policy, [2]), token, token, capacity=2)
        valid = torch.ones(1, length, dtype=torch.bool)
        compiled.attend(token, token, token, state, scale=1.0, valid=valid, static=None)
