"""What the suite of policy invariants runs over, and how it feeds tokens to a layer."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from h2o_lab.attention import Caps, LayerState, attend
from h2o_lab.policies import (
    H2O,
    Fixed,
    FixedH2,
    Full,
    GlobalH2,
    H2OMean,
    H2Only,
    H2OOfficialMask,
    H2ORealDrop,
    H2OStreaming,
    KeyNorm,
    Local,
    Policy,
    Random,
    SparsePolicy,
    Streaming,
    Strided,
    StridedH2,
    TopK,
    TopKH2,
    Tova,
)
from tests.support import oracle
from tests.support.oracle import Rule

POLICIES: dict[str, tuple[Policy, Rule]] = {
    "full": (Full(), Rule("rest", rank="age")),
    "local": (Local(), Rule(1.0, rank="age")),
    "streaming": (Streaming(), Rule("rest", sink=4, rank="age")),
    "strided": (Strided(), Rule(0.5, rank="age", pattern="strided", pattern_share=0.5)),
    "fixed": (Fixed(), Rule(0.5, rank="age", pattern="fixed", pattern_share=0.5)),
    "random": (Random(), Rule(0.5, rank="static")),
    "knorm": (KeyNorm(), Rule(0.25, rank="static")),
    "h2o": (H2O(), Rule(0.5)),
    "h2_only": (H2Only(), Rule(1)),
    "h2o_mean": (H2OMean(), Rule(0.5, rank="mean")),
    "h2o_streaming": (H2OStreaming(), Rule(0.5, sink=4)),
    "strided_h2": (StridedH2(), Rule(0.5, pattern="strided", pattern_share=0.25)),
    "fixed_h2": (FixedH2(), Rule(0.5, pattern="fixed", pattern_share=0.25)),
    "tova": (Tova(), Rule(1, rank="last", together=True)),
    "global_h2": (GlobalH2(), Rule(0.5, rank="static")),
    "h2o_real_drop": (H2ORealDrop(), Rule(0.5, extra=1)),
    "topk": (TopK(), Rule("rest", sparse="topk")),
    "topk_h2": (TopKH2(), Rule("rest", sparse="topk_h2")),
    "h2o_official_mask": (H2OOfficialMask(), Rule("rest", sparse="official")),
    # combinations that no named policy has
    "h2o_sinks": (H2O(recent_fraction=0.25, sink_tokens=2), Rule(0.25, sink=2)),
    "h2o_last": (H2O(priority="last"), Rule(0.5, rank="last")),
    "h2o_max": (H2O(group_reduce="max"), Rule(0.5, reduce="max")),
    "h2o_layer": (H2O(scope="layer"), Rule(0.5, together=True)),
    "h2o_layer_max": (H2O(scope="layer", group_reduce="max"), Rule(0.5, together=True, reduce="max")),
    "random_layer": (Random(scope="layer"), Rule(0.5, rank="static", together=True)),
    "mean_layer": (H2OMean(scope="layer"), Rule(0.5, rank="mean", together=True)),
    "strided_sinks": (
        StridedH2(recent_fraction=0.25, sink_tokens=2),
        Rule(0.25, sink=2, pattern="strided", pattern_share=0.25),
    ),
}
"""By name: the policy, and how the contract describes it."""
SPARSE = [name for name, (policy, _) in POLICIES.items() if isinstance(policy, SparsePolicy)]
EVICTING = [name for name in POLICIES if name != "full" and name not in SPARSE]
EXECUTORS = ("reference", "numba")
N = 60
"""The tokens that a fractional budget would count: patterns follow them."""


@dataclass(frozen=True)
class Tokens:
    """Random tokens of a batch: q [B, H*G, T, D], k and v [B, H, T, D], valid bool [B, T]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    valid: torch.Tensor

    @classmethod
    def draw(cls, batch=2, heads=2, group=3, length=60, size=8, seed=0, dtype=torch.float32) -> "Tokens":
        g = torch.Generator().manual_seed(seed)
        q = 2 * torch.randn(batch, heads * group, length, size, generator=g)
        k = 2 * torch.randn(batch, heads, length, size, generator=g)
        v = torch.randn(batch, heads, length, size, generator=g)
        return cls(q.to(dtype), k.to(dtype), v.to(dtype), torch.ones(batch, length, dtype=torch.bool))

    @property
    def scale(self) -> float:
        return self.q.shape[-1] ** -0.5

    def columns(self, part: slice) -> "Tokens":
        return Tokens(self.q[:, :, part], self.k[:, :, part], self.v[:, :, part], self.valid[:, part])

    def rows(self, part) -> "Tokens":
        return Tokens(self.q[part], self.k[part], self.v[part], self.valid[part])

    def padded(self, left: list[int], right: list[int]) -> "Tokens":
        """The same tokens with garbage before and behind: row b gets left[b] and right[b] columns, of one sum."""
        width = self.q.shape[2] + left[0] + right[0]
        wide = Tokens.draw(len(left), self.k.shape[1], self.q.shape[1] // self.k.shape[1], width, seed=99)
        wide = replace(wide, valid=torch.zeros(len(left), width, dtype=torch.bool))
        for b, first in enumerate(left):
            part = slice(first, first + self.q.shape[2])
            for mine, other in ((wide.q, self.q), (wide.k, self.k), (wide.v, self.v)):
                mine[b, :, part] = other[b].to(mine.dtype)
            wide.valid[b, part] = self.valid[b]
        return wide


def fresh(policy: Policy, tokens: Tokens, caps, **options) -> LayerState:
    caps = [caps] * len(tokens.k) if isinstance(caps, int) else caps
    return LayerState.empty(
        policy,
        Caps.of(policy, caps, [N] * len(caps)),
        tokens.k,
        tokens.v,
        static=static_of(policy, tokens, None) is not None,
        **options,
    )


def static_of(policy: Policy, tokens: Tokens, state: LayerState | None):
    """Numbers of fixed priorities; those given from outside travel with the keys here."""
    if isinstance(policy, SparsePolicy):
        return None
    if policy.two_passes:
        return tokens.k.float().sum(dim=-1)
    seen = state.seen if state is not None else torch.zeros(len(tokens.k), dtype=torch.int64)
    positions = seen[:, None] + tokens.valid.long().cumsum(1) - 1
    return policy.static_priority(positions, tokens.k, layer=1, seed=5)


def expected(name: str, tokens: Tokens, b: int, cap: int, angles=None):
    """What the oracle says of row b, padding left out: outputs [H, G, T, D], kept sets and scores of each head."""
    policy, rule = POLICIES[name]
    real = tokens.valid[b]
    q, k, v = tokens.q[b][:, real], tokens.k[b][:, real], tokens.v[b][:, real]
    q = q.view(len(k), -1, *q.shape[1:])
    if rule.sparse:
        outs = [oracle.run_sparse(rule, q[h], k[h], v[h], cap, tokens.scale) for h in range(len(k))]
        return torch.tensor(np.stack(outs)), None, None
    static = static_of(policy, tokens, None)
    out, history, scores = oracle.run(
        rule,
        q,
        k,
        v,
        cap if policy.budgeted else None,
        tokens.scale,
        static[b][:, real] if static is not None else None,
        n=N,
        angles=angles,
    )
    return torch.tensor(out), history, scores


def feed(state: LayerState, tokens: Tokens, executor: str, chunks: list[int] | None = None) -> torch.Tensor:
    """Feed tokens in chunks of the given lengths; the outputs [B, Hq, T, D]."""
    outs, start = [], 0
    for length in chunks or [tokens.q.shape[2]]:
        part = tokens.columns(slice(start, start + length))
        start += length
        outs.append(
            attend(
                part.q,
                part.k,
                part.v,
                state,
                scale=tokens.scale,
                valid=part.valid,
                static=static_of(state.policy, part, state),
                executor=executor,
            )
        )
    return torch.cat(outs, dim=2)


def kept(state: LayerState, b: int = 0, h: int = 0) -> list[int]:
    """Sorted positions that a head holds."""
    return sorted(p for p in state.positions[b, h].tolist() if p >= 0)
