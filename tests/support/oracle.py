"""The contract once more, written independently and as plainly as possible: loops, float64, one token at a time.

Tests compare every executor with it. It shares no code with the package: policies are described by hand.
"""

from dataclasses import dataclass
from math import ceil, floor

import numpy as np


@dataclass(frozen=True)
class Rule:
    """How a policy reads in the contract's words; `recent` is a share of k, a count, or "rest"."""

    recent: float | int | str
    sink: int = 0
    rank: str = "accumulated"
    reduce: str = "sum"
    together: bool = False  # all heads of the layer keep the same tokens
    pattern: str | None = None
    pattern_share: float = 0.0
    extra: int = 0  # entries held, and recents, beyond what k says
    sparse: str | None = None  # what a query attends to, where nothing is evicted

    def sizes(self, k: int) -> tuple[int, int, int]:
        """(recent, sink, pattern members) protected."""
        members = floor(self.pattern_share * k)
        if self.recent == "rest":
            asked = max(1, k - self.sink - members)
        else:
            asked = max(1, floor(self.recent * k)) if isinstance(self.recent, float) else self.recent
        recent = min(asked, k)
        sink = min(self.sink, k - recent)
        return recent, sink, min(members, k - recent - sink)

    def members(self, upto: int, room: int, n: int) -> list[int]:
        """Positions of the pattern up to and including `upto`."""
        if self.pattern == "strided":
            stride = ceil(n / room) if room else n
            return [s for s in range(upto + 1) if s % stride == 0]
        if self.pattern == "fixed":
            block = max(ceil(4 * n / room) if room else 4 * n, 4)
            return [s for s in range(upto + 1) if s % block >= block - 4]
        return []

    def protected(self, t: int, k: int, n: int) -> set[int]:
        """Positions that may not be evicted when token t comes in."""
        recent, sink, room = self.sizes(k)
        recent += self.extra
        pattern = self.members(t - recent, room, n)[-room:] if room else []
        return {s for s in range(t) if s > t - recent or s < sink} | set(pattern)


def softmax(logits):
    p = np.exp(logits - logits.max())
    return p / p.sum()


def run(rule: Rule, q, k_new, v, cap: int | None, scale: float, static=None, n: int | None = None, angles=None):
    """One layer of one sequence: q [H, G, T, D], k_new and v [H, T, D], static [H, T].

    `angles` [D / 2] are radians per position where positions roll. Returns outputs [H, G, T, D], and for each head
    the kept sets of every step and the last scores.
    """
    q, k_new, v = (np.asarray(x, np.float64) for x in (q, k_new, v))
    heads, group, length, _ = q.shape
    static = np.asarray(static, np.float64) if static is not None else None
    if static is not None and rule.together:
        static = np.broadcast_to(static.sum(axis=0), static.shape)
    kept: list[list[int]] = [[] for _ in range(heads)]
    scores: list[dict[int, float]] = [{} for _ in range(heads)]
    history: list[list[list[int]]] = [[] for _ in range(heads)]
    out = np.zeros((heads, group, length, v.shape[-1]))
    for t in range(length):
        arrived = np.zeros((heads, length))
        for h in range(heads):
            if cap is not None and len(kept[h]) == cap + rule.extra:
                safe = rule.protected(t, cap, n or cap)
                numbers = static[h] if static is not None else None
                gone = min(set(kept[h]) - safe, key=lambda s: (value(rule, s, t, scores[h], numbers), s))
                kept[h].remove(gone)
                del scores[h][gone]
            kept[h].append(t)
            scores[h][t] = 0.0
            keys, query = k_new[h, kept[h]], q[h, :, t]
            if angles is not None:
                keys = np.stack([turn(key, place, angles) for place, key in enumerate(keys)])
                query = np.stack([turn(x, len(kept[h]) - 1, angles) for x in query])
            ps = [softmax(keys @ query[g] * scale) for g in range(group)]
            for g, p in enumerate(ps):
                out[h, g, t] = p @ v[h, kept[h]]
            arrived[h, kept[h]] = np.sum(ps, axis=0) if rule.reduce == "sum" else np.max(ps, axis=0)
            history[h].append(sorted(kept[h]))
        for h in range(heads):
            received = arrived.sum(axis=0) if rule.together else arrived[h]
            for s in kept[h]:
                scores[h][s] = received[s] + (0 if rule.rank == "last" else scores[h][s])
    return out, history, scores


def turn(x, place: int, angles):
    """Rotate the pairs (i, i + len(angles)) of x by place * angles; what lies behind stays."""
    m = len(angles)
    c, s = np.cos(place * angles), np.sin(place * angles)
    a, b = x[:m], x[m : 2 * m]
    return np.concatenate([a * c - b * s, b * c + a * s, x[2 * m :]])


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


def full_attention(q, k_new, scale: float):
    """Causal probabilities [G, T, T] of one head; q [G, T, D], k_new [T, D]."""
    q, k_new = np.asarray(q, np.float64), np.asarray(k_new, np.float64)
    length = q.shape[1]
    p = np.zeros((len(q), length, length))
    for g in range(len(q)):
        for t in range(length):
            p[g, t, : t + 1] = softmax(k_new[: t + 1] @ q[g, t] * scale)
    return p


def run_sparse(rule: Rule, q, k_new, v, k: int, scale: float):
    """One head of a policy that only masks: q [G, T, D]; returns outputs [G, T, D]."""
    q, k_new, v = (np.asarray(x, np.float64) for x in (q, k_new, v))
    group, length, _ = q.shape
    full = full_attention(q, k_new, scale)
    columns = full.sum(axis=(0, 1))
    heavy = _heavy_sets(rule, q, k_new, v, max(1, k // 2), scale, full)
    out = np.zeros((group, length, v.shape[-1]))
    for g in range(group):
        for t in range(length):
            logits = k_new[: t + 1] @ q[g, t] * scale
            best = sorted(range(t + 1), key=lambda s: (-logits[s], -s))
            if rule.sparse == "topk":
                seen = best[:k]
            elif rule.sparse == "topk_h2":
                others = [s for s in best if s not in heavy[t]]
                seen = heavy[t] + others[: k - max(1, k // 2)]
            elif rule.sparse == "drop_h2":
                dropped = sorted(range(length), key=lambda s: (-columns[s], -s))[:k]
                seen = [s for s in range(t + 1) if s not in dropped or s == t]
            else:
                near = range(max(0, t - max(1, k // 2)), t + 1)
                seen = [s for s in range(t + 1) if s in near or s in heavy[t]]
            out[g, t] = softmax(logits[seen]) @ v[seen]
    return out


def _heavy_sets(rule: Rule, q, k_new, v, size: int, scale: float, full) -> list[list[int]]:
    """For each query the heavy set that the rule speaks of."""
    length = q.shape[1]
    if rule.sparse == "topk_h2":
        return run(Rule(0.5), q[None], k_new[None], v[None], size, scale)[1][0]
    if rule.sparse == "global_h2_mask":
        columns = full.sum(axis=(0, 1))
        top = sorted(range(length), key=lambda s: (-columns[s], -s))[:size]
        return [top] * length
    heavy: list[list[int]] = []
    scores: dict[int, float] = {}
    for t in range(length):  # the published scripts: the newest is always in, and competes from the next step on
        if len(scores) == size:
            del scores[min(scores, key=lambda s: (scores[s], s))]
        scores[t] = 0.0
        for s in scores:
            scores[s] += full[:, t, s].sum()
        heavy.append(sorted(scores))
    return heavy
