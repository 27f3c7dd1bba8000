"""What the tests of the theory share: random attention, sets of tokens, and the objectives spelled out."""

import numpy as np

from h2o_lab.theory import Coverage, FacilityLocation, Modular

NAMES = ("modular", "facility_location", "coverage")


def members(subset) -> set[int]:
    return set(np.flatnonzero(subset).tolist())


def mask(n: int, *tokens: int) -> np.ndarray:
    return np.isin(np.arange(n), tokens)


def causal(heads: int, length: int, seed: int) -> np.ndarray:
    """Random causal attention, float64 [heads, length, length], far from uniform."""
    weight = np.exp(3 * np.random.default_rng(seed).normal(size=(heads, length, length))) * np.tri(length)
    return weight / weight.sum(axis=-1, keepdims=True)


def plain_value(name: str, columns: np.ndarray, kept: set[int]) -> float:
    """The three objectives, from their definitions."""
    queries, tokens = columns.shape
    if name == "modular":
        return sum(columns[q, j] for q in range(queries) for j in kept)
    if name == "coverage":
        return sum(min(0.3, sum(columns[q, j] for j in kept)) for q in range(queries))

    def cosine(a, b):
        return float(a @ b / np.sqrt((a @ a) * (b @ b)))

    return sum(max((cosine(columns[:, i], columns[:, j]) for j in kept), default=0.0) for i in range(tokens))


def three(columns: np.ndarray) -> dict:
    return {
        "modular": Modular(columns.sum(axis=0)),
        "facility_location": FacilityLocation.of_columns(columns),
        "coverage": Coverage(columns, 0.3),
    }
