"""The contract once more, written independently and as plainly as possible: loops, float64, one head at a time.

Tests compare every executor with it. It shares no code with the package: policies are described by hand.
"""

from dataclasses import dataclass
from math import floor

import numpy as np


@dataclass(frozen=True)
class Rule:
    """How a policy reads in the contract's words; `recent` is a share of k, a count, or "rest"."""

    recent: float | int | str
    sink: int = 0
    rank: str = "accumulated"
    reduce: str = "sum"

    def sizes(self, k: int) -> tuple[int, int]:
        if self.recent == "rest":
            asked = max(1, k - self.sink)
        else:
            asked = max(1, floor(self.recent * k)) if isinstance(self.recent, float) else self.recent
        recent = min(asked, k)
        return recent, min(self.sink, k - recent)


def run(rule: Rule, q, k_new, v, cap: int | None, scale: float, static=None):
    """One KV head: q [G, T, D], k_new and v [T, D]; returns outputs [G, T, D], kept sets, scores."""
    q, k_new, v = (np.asarray(x, np.float64) for x in (q, k_new, v))
    group, length, _ = q.shape
    kept: list[int] = []
    scores: dict[int, float] = {}
    out = np.zeros((group, length, v.shape[-1]))
    history = []
    for t in range(length):
        if cap is not None and len(kept) == cap:
            recent, sink = rule.sizes(cap)
            open_ = [s for s in kept if s <= t - recent and s >= sink]
            gone = min(open_, key=lambda s: (value(rule, s, t, scores, static), s))
            kept.remove(gone)
            del scores[gone]
        kept.append(t)
        scores[t] = 0.0
        received = []
        for g in range(group):
            logits = k_new[kept] @ q[g, t] * scale
            p = np.exp(logits - logits.max())
            p /= p.sum()
            out[g, t] = p @ v[kept]
            received.append(p)
        total = np.sum(received, axis=0) if rule.reduce == "sum" else np.max(received, axis=0)
        for s, x in zip(kept, total, strict=True):
            scores[s] = x if rule.rank == "last" else scores[s] + x
        history.append(sorted(kept))
    return out, history, scores


def value(rule: Rule, s: int, t: int, scores, static) -> float:
    if rule.rank == "age":
        return 0.0
    if rule.rank == "static":
        return float(static[s])
    return scores[s] / (t - s) if rule.rank == "mean" else scores[s]


def dense(q, k_new, v, history, scale: float):
    """Attention under a dense mask built from kept sets; q [G, T, D]; returns [G, T, D]."""
    q, k_new, v = (np.asarray(x, np.float64) for x in (q, k_new, v))
    mask = np.full((q.shape[1], q.shape[1]), -np.inf)
    for t, kept in enumerate(history):
        mask[t, kept] = 0
    logits = q @ k_new.T * scale + mask
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True) @ v
