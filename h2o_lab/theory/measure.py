"""All measurements on the attention of one layer: the best set, greedy, the checks, and the dynamics."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from h2o_lab.theory.checks import Violations, random_triples, violations
from h2o_lab.theory.dynamics import step_changes, top_sets
from h2o_lab.theory.maps import accumulated, candidates
from h2o_lab.theory.objectives import Coverage, FacilityLocation, Floats, Modular, Objective
from h2o_lab.theory.process import h2o_process, process_value
from h2o_lab.theory.search import greedy, one_out_one_in, optimum


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is measured, on each head of each layer."""

    sizes: tuple[int, ...] = (2, 4, 8)
    """k of the sets that are searched by brute force."""
    heavy: int = 8
    """Candidates: tokens with the most attention."""
    spread: int = 8
    """Candidates: tokens drawn from the rest."""
    cap: float = 0.5
    """Cap of `Coverage`."""
    triples: int = 300
    """Random triples per objective for `violations`."""
    caches: tuple[int, ...] = (8, 51)
    """k of the dynamics and of the process, over all tokens of the window."""


class Choices(NamedTuple):
    """The sets of one head."""

    samples: list[dict[str, Any]]
    """One per objective and k: the value of the optimum, of the worst set, and shares of the optimum."""
    found: dict[str, Violations]
    """By objective."""


class Step(NamedTuple):
    """Names a quantity that is measured at every step."""

    of: str
    """`accumulated`, `latest` (see `dynamics`), `h2o` or `h2_only` (see `process`)."""
    k: int
    quantity: str
    """A field of `StepChanges` or of `ProcessValue`."""


def objectives(columns: Floats, cap: float) -> dict[str, Objective]:
    """The three objectives over the attention columns of the candidates, float64 [T, n]."""
    return {
        "modular": Modular(columns.sum(axis=0)),
        "facility_location": FacilityLocation.of_columns(columns),
        "coverage": Coverage(columns, cap),
    }


def measure_choices(attention: Floats, settings: Settings, rng: np.random.Generator) -> Choices:
    """Sets of one head, whose attention is float64 [T, T], query by key."""
    columns = attention[:, candidates(attention, settings.heavy, settings.spread, rng)]
    heaviest = {k: top_sets(columns.sum(axis=0), k) for k in settings.sizes}
    samples: list[dict[str, Any]] = []
    found: dict[str, Violations] = {}
    for name, objective in objectives(columns, settings.cap).items():
        found[name] = violations(objective, random_triples(objective.size, settings.triples, rng))
        for k in settings.sizes:
            every = optimum(objective, k)
            sets = np.stack([greedy(objective, k), one_out_one_in(objective, k), heaviest[k]])
            values = [*objective.values(sets), every.mean, every.worst]
            shares = [value / every.best if every.best > 0 else 1.0 for value in values]
            names = ("greedy", "one_out_one_in", "heaviest", "average_set", "worst_set")
            samples.append(
                {"objective": name, "k": k, "optimum": every.best} | dict(zip(names, shares, strict=True))
            )
    return Choices(samples, found)


def measure_steps(attention: Floats, settings: Settings) -> dict[Step, Floats]:
    """What changes from step to step in the heads of one layer: float64 [H, steps] each, the last at step T - 1.

    Args:
        attention: float64 [H, T, T], query by key.
        settings: names the sizes of the sets.
    """
    steps: dict[Step, Floats] = {}
    for k in settings.caches:
        for of, scores in (("accumulated", accumulated(attention)), ("latest", attention)):
            changes = step_changes(scores, k)
            steps |= {Step(of, k, quantity): values for quantity, values in changes._asdict().items()}
        for of, recent in (("h2o", k // 2), ("h2_only", 1)):
            value = process_value(attention, h2o_process(attention, k, recent), k)
            steps |= {Step(of, k, quantity): values for quantity, values in value._asdict().items()}
    return steps
