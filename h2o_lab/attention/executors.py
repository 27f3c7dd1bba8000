"""The one primitive, `attend`, and the choice of who executes it."""

import os
from collections.abc import Callable
from importlib.util import find_spec

import torch

from h2o_lab.attention import dense, masked, reference
from h2o_lab.attention.padding import no_padding, token_counts
from h2o_lab.attention.state import LayerState
from h2o_lab.errors import UserError
from h2o_lab.policies import SparsePolicy

EXECUTORS = ("auto", "reference", "numba", "triton")
SPARSE_BLOCK = 64


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    state: LayerState,
    *,
    scale: float,
    valid: torch.Tensor | None = None,
    static: torch.Tensor | None = None,
    executor: str = "auto",
) -> torch.Tensor:
    """Feed T new tokens to a layer one after the other: evict, insert, attend, account.

    For each token at absolute position t of its sequence: (1) if a head already holds k entries, the
    unprotected one with the smallest priority is removed; (2) the token takes a slot, with score 0; (3) its
    queries attend to the entries now held; (4) each entry's score grows by the probability it received,
    reduced over the query heads of the group, in float32. So no query ever sees more than k entries. This is
    Algorithm 1 of the paper with the eviction at the start of the next step.

    Args:
        q: [B, Hq, T, D], query heads of one KV head side by side (Hq = H * G).
        k, v: [B, H, T, D] of the new tokens.
        state: the layer's cache; changed in place.
        scale: factor on the dot products.
        valid: bool [B, T]; False marks padding, which is never inserted, scored or counted (its output is
            arbitrary). None for no padding.
        static: float32 [B, H, T], priorities of the new tokens where the state ranks by them.
        executor: one of `EXECUTORS`; `auto` is numba on the CPU, triton on CUDA devices that it covers, and the
            reference elsewhere. A `SparsePolicy` masks in plain tensor operations on any.

    Returns:
        [B, Hq, T, D] in q's dtype.

    Raises:
        UserError: the executor is unknown, or cannot run on this device.
    """
    if valid is None:
        valid = no_padding(q.shape[0], q.shape[2], q.device)
    run = _choose(executor, q.device, state)
    state.reserve(int((state.seen + token_counts(valid)).max()))
    if isinstance(state.policy, SparsePolicy):
        block = 1 if executor == "reference" else SPARSE_BLOCK
        return masked.attend(q, k, v, state, scale=scale, valid=valid, block=block, beside=run)
    if static is not None and state.policy.scope != "head":
        static = static.sum(dim=1, keepdim=True).expand_as(static)
    return run(q, k, v, state, scale=scale, valid=valid, static=static)


def check_executor(name: str, device: torch.device | None = None) -> None:
    """Refuse an executor that is unknown or does not run on a device (None: whatever the device).

    Raises:
        UserError: says which are allowed.
    """
    if name not in EXECUTORS:
        raise UserError(f"executor={name} is unknown: it must be one of {', '.join(EXECUTORS)}.")
    if device is None:
        return
    if name == "numba" and device.type != "cpu":
        raise UserError(f"executor=numba runs on the CPU, and the model is on {device}: use auto or reference.")
    if name == "triton" and not triton_runs(device):
        why = f"the model is on {device}" if device.type != "cuda" else "the package triton is not installed"
        raise UserError(f"executor=triton runs on CUDA devices, and {why}: use auto or reference.")


def triton_runs(device: torch.device) -> bool:
    """Whether Triton is there and reaches a device; its interpreter (TRITON_INTERPRET=1) reaches all."""
    return find_spec("triton") is not None and (device.type == "cuda" or _interpreted())


def triton_fits(device: torch.device) -> bool:
    """Whether `auto` takes Triton: on NVIDIA's GPUs from Ampere on, whose arithmetic the kernels ask for."""
    return (
        device.type == "cuda"
        and torch.version.hip is None
        and triton_runs(device)
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on")


def warm_up(name: str, device: torch.device) -> None:
    """Compile or load what the executor needs on this device, so that it is not part of what is timed."""
    if name == "numba" or (name == "auto" and device.type == "cpu"):
        from h2o_lab.attention import kernel

        kernel.ready()
        kernel.touch()


def _choose(name: str, device: torch.device, state: LayerState) -> Callable[..., torch.Tensor]:
    check_executor(name, device)
    plain = not state.caps.bounded and not state.policy.needs_scores and state.evicted_at is None
    if name == "auto" and plain and not isinstance(state.policy, SparsePolicy):
        return dense.attend
    if name == "numba" or (name == "auto" and device.type == "cpu"):
        from h2o_lab.attention import compiled, kernel

        kernel.ready()
        return compiled.attend
    if name == "triton" or (name == "auto" and triton_fits(device)):
        from h2o_lab.attention import triton_attend

        return triton_attend.attend
    return reference.attend
