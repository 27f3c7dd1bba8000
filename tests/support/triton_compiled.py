"""Compiles the Triton kernels as `attend` would start them, to machine code for a GPU that need not be there.

Run by `test_triton.py` in a process of its own, without the interpreter; prints how many were compiled.
"""

import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from h2o_lab.attention import triton_attend, triton_scan, triton_step
from tests.support.invariants import POLICIES, Tokens, fresh, static_of

NAMES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
}
CASES = [
    ("h2o", torch.float16, 1, 128, 90),
    ("tova", torch.float32, 3, 64, 90),
    ("mean_layer", torch.bfloat16, 4, 80, 80),
    ("knorm", torch.bfloat16, 1, 8, 80),
]
"""Policy, numbers, group, size of a head, and the GPU's capability."""


class Compiler:
    """Stands in for a kernel: compiles it for the arguments that it would be started with."""

    def __init__(self, kernel, capability: int, done: list[str]) -> None:
        self.kernel, self.capability, self.done = kernel, capability, done

    def __getitem__(self, grid):
        return self.compile

    def compile(self, *args, num_warps: int = 4, **constants) -> None:
        names = [name for name in self.kernel.arg_names if name not in constants]
        signature = {name: _kind(value) for name, value in zip(names, args, strict=True)}
        signature |= dict.fromkeys(constants, "constexpr")
        in_order = {name: signature[name] for name in self.kernel.arg_names}
        target = GPUTarget("cuda", self.capability, 32)
        source = ASTSource(self.kernel, in_order, constants)
        self.done.append(triton.compile(source, target=target, options={"num_warps": num_warps}).asm["cubin"][:4])


def _kind(value) -> str:
    if isinstance(value, torch.Tensor):
        return f"*{NAMES[value.dtype]}"
    return "fp32" if isinstance(value, float) else "i32"


def main() -> None:
    done: list[str] = []
    kernels = [(triton_step, "_step"), (triton_scan, "_walk"), (triton_scan, "_place")]
    originals = [getattr(module, name) for module, name in kernels]
    for name, dtype, group, size, capability in CASES:
        for (module, kernel), original in zip(kernels, originals, strict=True):
            setattr(module, kernel, Compiler(original, capability, done))
        tokens = Tokens.draw(batch=1, heads=2, group=group, length=9, size=size, dtype=dtype)
        state = fresh(POLICIES[name][0], tokens, 6)
        for part in (slice(0, 8), slice(8, 9)):
            now = tokens.columns(part)
            static = static_of(state.policy, now, state)
            triton_attend.attend(now.q, now.k, now.v, state, scale=1.0, valid=now.valid, static=static)
    assert all(code == b"\x7fELF" for code in done)
    sys.stdout.write(f"{len(done)}\n")


if __name__ == "__main__":
    main()
