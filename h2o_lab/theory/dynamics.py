"""How fast the objective changes from one step to the next, and what a stale choice costs.

The paper's guarantee (Theorem 4.4, D.32) asks for slow dynamics: from one step to the next the value of the best
set falls by a factor of 1 - gamma at most, and the value of a fixed set changes by a factor of 1 - theta at most
(Universal Dynamic Conditions, Appendix D.11). For step t, with tokens 0..t seen, let

    f_t(S) = sum of score[t, s] over s in S,   |S| = k,   S within {0..t},   opt_t = max f_t,   S*_t its set,

where score[t] is, by choice of the caller, the attention accumulated through step t (what H2O ranks by) or that
of the query of step t alone. h is the identity. Each step t -> t + 1 yields, all in [0, 1]:

- `fall`: the smallest theta with f_{t+1}(S) >= (1 - theta) f_t(S) for every S;
- `rise`: the smallest theta with f_t(S) >= (1 - theta) f_{t+1}(S) for every S; the largest relative growth
  max_S f_{t+1}(S) / f_t(S) - 1 is rise / (1 - rise);
- `gamma`: the smallest gamma with opt_{t+1} >= (1 - gamma) opt_t;
- `stale`: 1 - f_{t+1}(S*_t) / opt_{t+1}, what the best set of step t lacks of the best one of step t + 1;
- `overlap`: the share of S*_t that is in S*_{t+1}.

`fall` and `rise` are maxima over all C(t + 1, k) sets, exact by Dinkelbach's method.

Where the conditions, as far as they are stated, are loose:

- Accumulated attention never decreases, so neither do f_t(S) and opt_t: `fall` and `gamma` are 0 for any model
  and any text. Read as bounds from below, both conditions hold for H2O's scores with gamma = theta = 0 and
  say nothing about the dynamics. Divided by the number of queries, f_t(S) falls by 1 / (t + 2) at most, again
  whatever the model does.
- "Changes by at most a factor" may bound growth too; that is `rise`. As a maximum over all sets it is
  large wherever k light tokens, such as newcomers, receive attention for the first time.
- Neither condition bounds what a cache loses by its past choices: that is `stale`, and, summed up along the way,
  `h2o_lab.theory.process`.
- The paper's F(Z, i, S) also depends on the previous cache Z, whose softmax is over Z alone (Definition 2.2). The
  scores measured here are of full attention, Z = all tokens; only then f_t(S) is known for every S.
"""

from typing import NamedTuple

import numpy as np

from h2o_lab.theory.objectives import Bools, Floats


class StepChanges(NamedTuple):
    """Each [H, T - k], for the steps t -> t + 1 with t = k - 1 .. T - 2; see the module for the meaning."""

    fall: Floats
    rise: Floats
    gamma: Floats
    stale: Floats
    overlap: Floats


def step_changes(scores: Floats, k: int) -> StepChanges:
    """Compare f_t and f_{t+1} at every step at which there are k tokens to choose.

    Args:
        scores: float64 [H, T, T], score[h, t, s] >= 0 of token s after step t; what is at s > t is ignored.
        k: size of the sets.

    Raises:
        ValueError: k is not in 1..T-1, or a score is negative.
    """
    length = scores.shape[-1]
    if not 1 <= k < length:
        raise ValueError(f"k must be 1 to {length - 1}, below the number of tokens, and is {k}.")
    if not (scores >= 0).all():
        raise ValueError("scores must be 0 or more, and there is one that is not.")
    before, after = scores[:, k - 1 : -1], scores[:, k:]
    seen = np.tri(length, dtype=bool)[k - 1 : -1]
    best = top_sets(np.where(np.tri(length, dtype=bool), scores, -1.0)[:, k - 1 :], k)
    stale, fresh = best[:, :-1], best[:, 1:]
    opt_before, opt_after = (before * stale).sum(axis=-1), (after * fresh).sum(axis=-1)
    return StepChanges(
        fall=largest_fall(before, after, seen, k),
        rise=largest_fall(after, before, seen, k),
        gamma=shortfall(opt_after, opt_before),
        stale=shortfall((after * stale).sum(axis=-1), opt_after),
        overlap=(stale & fresh).sum(axis=-1) / k,
    )


def top_sets(scores: Floats, k: int) -> Bools:
    """The k largest entries of each row of `scores`, [..., n]: bool [..., n]; ties are broken arbitrarily."""
    sets = np.zeros(scores.shape, dtype=bool)
    np.put_along_axis(sets, np.argpartition(-scores, k - 1, axis=-1)[..., :k], True, axis=-1)
    return sets


def largest_fall(before: Floats, after: Floats, allowed: Bools, k: int) -> Floats:
    """The smallest theta >= 0 with after(S) >= (1 - theta) before(S) for every S of k allowed tokens.

    Dinkelbach's method on min_S after(S) / before(S): from the ratio r = 1, take the k tokens with the smallest
    after - r * before; where that sum is negative their ratio is smaller, and replaces r; else r is the minimum.

    Args:
        before: float64 [..., n], not negative.
        after: float64 [..., n], not negative.
        allowed: bool [..., n], broadcast to the others; at least k per row.
        k: size of the sets.

    Returns:
        float64 [...], in [0, 1]; 0 where no set falls.
    """
    ratio = np.ones(before.shape[:-1])
    active = np.ones(ratio.shape, dtype=bool)
    allowed = np.broadcast_to(allowed, before.shape)
    while active.any():
        high, low, free = before[active], after[active], allowed[active]
        cost = np.where(free, low - ratio[active][:, None] * high, np.inf)
        chosen = np.argpartition(cost, k - 1, axis=-1)[:, :k]
        was = np.take_along_axis(high, chosen, axis=-1).sum(axis=-1)
        now = np.take_along_axis(low, chosen, axis=-1).sum(axis=-1)
        found = np.divide(now, was, out=np.ones_like(now), where=was > 0)
        lower = found < ratio[active]
        ratio[active] = np.where(lower, found, ratio[active])
        active[active] = lower
    return 1.0 - ratio


def shortfall(value: Floats, reference: Floats) -> Floats:
    """max(0, 1 - value / reference), 0 where the reference is 0."""
    ratio = np.divide(value, reference, out=np.ones_like(value), where=reference > 0)
    return np.maximum(0.0, 1.0 - ratio)
