"""H2O as a process: what one-out-one-in holds at each step, and its value against the best set of that step.

This is the left side of the paper's guarantee, f(S_i) >= (1 - 1/e)(1 - alpha) opt_i - beta (Theorem 4.4), with the
scores growing as the text does. f is the accumulated full attention; the cache itself only sees its own softmax.

No share of opt_i is sure, however slow the dynamics are. Where all attention goes, from some step on, to a token
that has been evicted, opt_i grows by 1 per step and f(S_i) stays: their ratio tends to 0, while gamma and theta are
0 as bounds from below, and the growth of f per step, relative to f, tends to 0 too. A token that is out does not
come back (Definition 2.1), and exact scores would have evicted it all the same. Whether it happens is up to the
model and the text.
"""

from typing import NamedTuple

import numpy as np

from h2o_lab.theory.dynamics import shortfall, top_sets
from h2o_lab.theory.maps import accumulated
from h2o_lab.theory.objectives import Bools, Floats


class Process(NamedTuple):
    """The caches of H heads over T steps."""

    held: Bools
    """bool [H, T, T]: whether the query of step t attends to token s."""
    scores: Floats
    """float64 [H, T, T]: what the cache has accumulated for token s after step t, 0 if s is not held."""


def h2o_process(attention: Floats, k: int, recent: int) -> Process:
    """Run the step rule: evict the lightest unprotected entry (ties: the oldest), insert, attend, account.

    Attention over what is held is full attention restricted and normalised (Definition 2.2 for the same queries
    and keys): what evictions change in the layers below, and so in queries and keys, is left out. A query whose
    attention to all that is held is 0 in the map's precision adds to no score.

    Args:
        attention: float64 [H, T, T], causal, query by key.
        k: most entries held, the current token included.
        recent: newest entries that are not evicted, the current token included; k/2 in the paper's H2O.

    Raises:
        ValueError: recent is not in 1..k.
    """
    if not 1 <= recent <= k:
        raise ValueError(f"recent must be 1 to {k}, the size of the cache, and is {recent}.")
    heads, length, _ = attention.shape
    held = np.zeros((heads, length, length), dtype=bool)
    scores = np.zeros((heads, length, length))
    now, total = np.zeros((heads, length), dtype=bool), np.zeros((heads, length))
    rows = np.arange(heads)
    for step in range(length):
        if step >= k:
            free = now.copy()
            free[:, step - recent + 1 :] = False
            victim = np.where(free, total, np.inf).argmin(axis=1)
            now[rows, victim] = False
            total[rows, victim] = 0.0
        now[:, step] = True
        seen = np.where(now, attention[:, step], 0.0)
        mass = seen.sum(axis=1, keepdims=True)
        total += np.divide(seen, mass, out=np.zeros_like(seen), where=mass > 0)
        held[:, step], scores[:, step] = now, total
    return Process(held, scores)


class ProcessValue(NamedTuple):
    """Each float64 [H, T - k], for the steps t = k .. T - 1, at which something has been evicted."""

    ratio: Floats
    """f_t(S_t) / opt_t, in accumulated full attention through step t."""
    optimism: Floats
    """1 - f_t(S_t) / g_t(S_t), with g the cache's own scores: the error of the scores it decides by. The cache
    normalises over fewer tokens, so that g >= f for what it holds."""


def process_value(attention: Floats, process: Process, k: int) -> ProcessValue:
    """Value the caches of `h2o_process(attention, k, ...)`."""
    full = accumulated(attention)[:, k:]
    held = process.held[:, k:]
    value = (full * held).sum(axis=-1)
    best = (full * top_sets(full, k)).sum(axis=-1)
    own = process.scores[:, k:].sum(axis=-1)
    return ProcessValue(1.0 - shortfall(value, best), shortfall(value, own))
