"""Arithmetic that LLVM turns into SIMD inside compiled loops: exp, larger, smaller."""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

FAST = {"nnan", "nsz", "arcp", "contract", "afn", "reassoc"}


@intrinsic
def power_of_two(typingctx, whole):
    """2**whole for a whole float32 in [-126, 127], by writing the exponent's bits."""

    def generate(context, builder, signature, args):
        exponent = builder.add(builder.fptosi(args[0], ir.IntType(32)), ir.Constant(ir.IntType(32), 127))
        return builder.bitcast(builder.shl(exponent, ir.Constant(ir.IntType(32), 23)), ir.FloatType())

    return types.float32(types.float32), generate


def _choice(comparison: str):
    """An intrinsic that picks one of two float32; unlike min and max, LLVM turns a loop of it into SIMD."""

    @intrinsic
    def pick(typingctx, a, b):
        def generate(context, builder, signature, args):
            flags = ("nnan", "nsz")
            first = builder.fcmp_ordered(comparison, *args, flags=flags)
            return builder.select(first, *args, flags=flags)

        return types.float32(types.float32, types.float32), generate

    return pick


larger, smaller = _choice(">"), _choice("<")


@numba.njit(inline="always", fastmath=FAST, error_model="numpy")
def exp(x):
    """e**x for x <= 0 in float32, relative error below 3e-7; exactly 0 below -87."""
    f = max(x, np.float32(-87.0)) * np.float32(1.44269504)
    whole = np.floor(f + np.float32(0.5))
    r = f - whole
    p = np.float32(1.5403530393381608e-4)
    p = p * r + np.float32(1.3333558146428443e-3)
    p = p * r + np.float32(9.618129107628477e-3)
    p = p * r + np.float32(5.550410866482158e-2)
    p = p * r + np.float32(2.402265069591007e-1)
    p = p * r + np.float32(6.931471805599453e-1)
    p = p * r + np.float32(1.0)
    return p * power_of_two(whole) if x > np.float32(-87.0) else np.float32(0.0)  # type: ignore[call-arg]
