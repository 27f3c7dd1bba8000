"""Matrix products inside compiled loops: a tile of the result stays in the CPU's vector registers."""

from __future__ import annotations

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _has_wide_registers() -> bool:
    try:
        return bool(llvm.get_host_cpu_features().get("avx512f"))
    except RuntimeError:  # the platform does not say
        return False


WIDE_REGISTERS = _has_wide_registers()
LANES = 16 if WIDE_REGISTERS else 8
"""Float32 numbers of one vector."""
VECTORS = 2
ROWS = 12 if WIDE_REGISTERS else 6
"""Rows of a tile: with its columns they fill 24 of 32, or 12 of 16 registers."""
COLUMNS = VECTORS * LANES
"""Columns of a tile."""


@intrinsic
def _tile(typingctx, a, at_a, row_a, b, at_b, row_b, c, at_c, row_c, depth):
    """c[ROWS, COLUMNS] = a[ROWS, depth] @ b[depth, COLUMNS], each at an offset into a contiguous float32 array, and
    with the distance between its rows."""
    vector = ir.VectorType(ir.FloatType(), LANES)
    whole = ir.IntType(64)
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    nothing = ir.Constant(vector, ir.Undefined)

    def generate(context, builder, signature, args):
        def pointer(array, offset):
            kind = signature.args[array]
            return builder.gep(context.make_array(kind)(context, builder, args[array]).data, [args[offset]])

        def vectors(start):
            places = [builder.gep(start, [ir.Constant(whole, i * LANES)]) for i in range(VECTORS)]
            return [builder.bitcast(place, vector.as_pointer()) for place in places]

        def rows(start, distance):
            return [builder.gep(start, [builder.mul(distance, ir.Constant(whole, i))]) for i in range(ROWS)]

        fma_type = ir.FunctionType(vector, [vector] * 3)
        fma = cgutils.get_or_insert_function(builder.module, fma_type, f"llvm.fma.v{LANES}f32")
        from_a, from_b, to_c = rows(pointer(0, 1), args[2]), pointer(3, 4), rows(pointer(6, 7), args[8])
        sums = [[cgutils.alloca_once(builder, vector) for _ in range(VECTORS)] for _ in range(ROWS)]
        for row in sums:
            for place in row:
                builder.store(ir.Constant(vector, [0.0] * LANES), place)
        with cgutils.for_range(builder, args[9]) as loop:
            line = builder.gep(from_b, [builder.mul(args[5], loop.index)])
            factors = [builder.load(place, align=4) for place in vectors(line)]
            for start, row in zip(from_a, sums, strict=True):
                number = builder.load(builder.gep(start, [loop.index]))
                first = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
                spread = builder.shuffle_vector(first, nothing, everywhere)
                for factor, place in zip(factors, row, strict=True):
                    builder.store(builder.call(fma, [spread, factor, builder.load(place)]), place)
        for start, row in zip(to_c, sums, strict=True):
            for place, target in zip(row, vectors(start), strict=True):
                builder.store(builder.load(place), target, align=4)
        return context.get_dummy_value()

    return types.void(a, at_a, row_a, b, at_b, row_b, c, at_c, row_c, depth), generate


@numba.njit(cache=True)
def dot_panels(a, panels, c, rows, columns):
    """c[:rows, :columns] = a @ panels.

    Args:
        a: float32 [R, D]; R is a multiple of `ROWS`, as in c.
        panels: float32 [P, D, COLUMNS]; panel p holds columns p * COLUMNS and following.
        c: float32 [R, W], W at least P * COLUMNS; rows and columns up to the next whole tile are written too.
        rows, columns: how many are asked for.
    """
    depth, width = a.shape[1], c.shape[1]
    for first in range(0, columns, COLUMNS):
        for row in range(0, rows, ROWS):
            to = row * width + first
            _tile(a, row * depth, depth, panels, first * depth, COLUMNS, c, to, width, depth)  # type: ignore[call-arg]


@numba.njit(cache=True)
def dot(a, b, c, rows, depth):
    """c[:rows] = a[:rows, :depth] @ b[:depth].

    Args:
        a: float32 [R, W]; R is a multiple of `ROWS`, as in c.
        b: float32 [W, N]; N is a multiple of `COLUMNS`.
        c: float32 [R, N]; rows up to the next whole tile are written too.
        rows, depth: how many are asked for.
    """
    width, columns = a.shape[1], b.shape[1]
    for row in range(0, rows, ROWS):
        for first in range(0, columns, COLUMNS):
            _tile(a, row * width, width, b, first, columns, c, row * columns + first, columns, depth)  # type: ignore[call-arg]


def whole(number: int, unit: int) -> int:
    """The smallest multiple of a unit that is no less."""
    return -(-number // unit) * unit
