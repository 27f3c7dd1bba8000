"""Whether an executor equals the reference on a device: every priority and kind of number, on small layers."""

from __future__ import annotations

import time

import torch

from h2o_lab.attention import Caps, LayerState, attend
from h2o_lab.policies import H2O, H2OMean, KeyNorm, Local, Policy, Random, StridedH2, Tova

POLICIES: dict[str, Policy] = {
    "accumulated": H2O(),
    "mean": H2OMean(),
    "last": H2O(priority="last"),
    "last, of the layer": Tova(),
    "position": Local(),
    "random": Random(),
    "static": KeyNorm(),
    "pattern": StridedH2(recent_fraction=0.25, sink_tokens=2),
    "maximum of the group": H2O(group_reduce="max"),
}
GROUPS = {torch.float32: (1, 4), torch.float16: (1,), torch.bfloat16: (4,)}
"""Of each type of numbers; not all with all, as every pair is a kernel to compile."""
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 4e-2}
CHUNKS = (30, 90, 1, 1, 1, 1)
"""Tokens of each call: blocks without and with evictions, then steps."""
CAPS = (40, 57)
TINY_CHUNKS, TINY_CAPS = (3, 6, 1, 1), (5, 7)


def differences(device: torch.device, executor: str, deadline: float) -> tuple[list[str], list[str]]:
    """A sentence for each case that differs, and for each that was not reached before `deadline`.

    A case is a policy, a type of numbers and the number of query heads for each KV head; the second sequence begins
    with padding.

    Args:
        deadline: of `time.monotonic`.
    """
    small = device.type == "cpu"
    cases = [(name, dtype, group) for dtype, groups in GROUPS.items() for name in POLICIES for group in groups]
    wrong, left_out = [], []
    for name, dtype, group in cases:
        case = f"equality, {name}, {dtype}, group {group}"
        if time.monotonic() > deadline:
            left_out.append(f"{case}: no time is left.")
            continue
        try:
            difference = _difference(POLICIES[name], dtype, group, device, executor, small)
        except Exception as error:
            difference = said(error)
        if difference:
            wrong.append(f"{case}: {difference}")
    return wrong, left_out


def said(error: Exception) -> str:
    """An error in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _difference(policy: Policy, dtype, group: int, device, executor: str, small: bool) -> str | None:
    chunks, caps = (TINY_CHUNKS, TINY_CAPS) if small else (CHUNKS, CAPS)
    heads, size, length = 2, 16 if small else 64, sum(chunks)
    g = torch.Generator().manual_seed(0)
    q, k, v = (
        (torch.randn(2, n, length, size, generator=g) * scale).to(device, dtype)
        for n, scale in ((heads * group, 2), (heads, 2), (heads, 1))
    )
    valid = torch.ones(2, length, dtype=torch.bool, device=device)
    valid[1, :2] = False
    states, outs = {}, {}
    for who in ("reference", executor):
        states[who] = state = _state(policy, caps, length, k, v)
        parts, start = [], 0
        for n in chunks:
            part = slice(start, start + n)
            start += n
            static = None
            if state.static is not None:
                at = state.seen.to(device)[:, None] + valid[:, part].long().cumsum(dim=1) - 1
                static = policy.static_priority(at.clamp(min=0), k[:, :, part], 0, 0)
            now = (q[:, :, part], k[:, :, part], v[:, :, part])
            how = {"scale": size**-0.5, "valid": valid[:, part], "static": static}
            parts.append(attend(*now, state, executor=who, **how))
        outs[who] = torch.cat(parts, dim=2).float().masked_fill(~valid[:, None, :, None], 0)
    mine, right = states[executor], states["reference"]
    order, order_right = mine.positions.argsort(dim=-1), right.positions.argsort(dim=-1)
    if not torch.equal(mine.positions.gather(2, order), right.positions.gather(2, order_right)):
        return "other entries are held"
    off = float((outs[executor] - outs["reference"]).abs().max())
    if not off <= TOLERANCE[dtype]:
        return f"outputs differ by up to {off:.1e}"
    off = float((mine.scores.gather(2, order) - right.scores.gather(2, order_right)).abs().max())
    return None if off <= 1e-3 else f"scores differ by up to {off:.1e}"


def _state(policy: Policy, caps: tuple[int, ...], length: int, k, v) -> LayerState:
    static = policy.static_priority(torch.zeros(2, 1, dtype=torch.int64), k[:, :, :1].cpu(), 0, 0) is not None
    return LayerState.empty(policy, Caps.of(policy, list(caps), [length] * 2), k, v, static=static)
