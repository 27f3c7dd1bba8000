"""A stored result, its first samples computed again, and what differs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from h2o_lab.cells import Journal, fingerprint
from h2o_lab.cells.identity import SEMANTICS, identity, name_of
from h2o_lab.checks import Plan, check
from h2o_lab.compute import run_cell
from h2o_lab.config import Config
from h2o_lab.errors import UserError
from h2o_lab.models import model_fingerprint
from h2o_lab.models.placement import in_one_process
from h2o_lab.results.store import to_json
from h2o_lab.tasks.kinds import kind_of
from h2o_lab.verify.compare import TOLERANCE, Difference, compare_samples, name_of_sample
from h2o_lab.verify.smaller import first_samples
from h2o_lab.verify.stored import Stored, read_stored

RUN = "the run"


@dataclass(frozen=True)
class Verification:
    """What came out.

    Attributes:
        stored: how many samples the result has.
        compared: names of those that were computed again.
        samples: what differs in them.
        circumstances: what differs in the conditions of the two runs; these alone make no result wrong.
        tolerance: relative, of numbers.
    """

    stored: int
    compared: list[str]
    samples: list[Difference]
    circumstances: list[Difference]
    tolerance: float

    @property
    def same(self) -> bool:
        """Whether the samples agree."""
        return not self.samples


def verify(
    folder: Path, most: int = 5, tolerance: float = TOLERANCE, start: Path | None = None, *, trust: bool = False
) -> Verification:
    """Compute the first samples of a stored result again, and compare.

    Args:
        folder: of the result; it is only read.
        most: how many samples.
        tolerance: see `h2o_lab.verify.compare.differences`.
        start: see `read_stored`.
        trust: whether code that the configuration names, and that is not ours, may run.

    Raises:
        UserError: the result cannot be verified: it cannot be read, or its model or data cannot be had.
    """
    if most < 1:
        raise UserError(f"--samples={most} is out of range: it must be 1 or more.")
    if not tolerance >= 0:
        raise UserError(f"--tolerance={tolerance} is out of range: it must be 0 or more.")
    stored = read_stored(folder, start)
    if not trust:
        _refuse_code(stored)
    in_one_process(stored.cfg.model)
    plan = check(stored.cfg)
    kind = kind_of(stored.cfg.task.kind)
    whole = kind.load(stored.cfg.task, stored.cfg.data)
    small = first_samples(stored.cfg, plan, whole, most)
    data = kind.load(small.task, small.data)
    record, computed, _ = run_cell(small, check(small), data, Journal(), {})
    now = [json.loads(to_json(sample)) for sample in computed]
    if not now:
        raise UserError(f"{folder}: its configuration gives no sample now, so that there is nothing to compare.")
    content = fingerprint(kind.content(whole, stored.cfg.task))
    conditions = [*_identity(stored, plan, content), *_environment(stored.record, record)]
    compared = [name_of_sample(sample) for sample in now]
    return Verification(
        len(stored.samples),
        compared,
        [*_lost(stored, compared, most), *compare_samples(stored.samples, now, tolerance)],
        conditions,
        tolerance,
    )


def _refuse_code(stored: Stored) -> None:
    """A folder of results may come from anybody.

    Raises:
        UserError: its configuration names code that is not ours.
    """
    cfg = stored.cfg
    own = str(cfg.policy.get("_target_")).split(".")[0] == "h2o_lab"
    if not own or cfg.model.trust_remote_code or getattr(cfg.task, "include_path", None):
        raise UserError(
            f"{stored.folder} was computed with a policy, model code or task that h2o_lab does not bring: "
            "read them, then use --trust."
        )


def _lost(stored: Stored, compared: list[str], most: int) -> Iterator[Difference]:
    """The very first samples have to be among those that came again."""
    first = name_of_sample(stored.samples[0])
    if first not in compared:
        yield Difference(first, "", "a sample", "absent")
    if len(compared) < min(most, len(stored.samples)) and stored.cfg.task.kind != "retrieval":
        yield Difference(RUN, "samples", len(stored.samples), len(compared))


def _identity(stored: Stored, plan: Plan, content: str) -> Iterator[Difference]:
    """Whether the result would count as one of the same cell; other semantics alone are said as such."""
    record, cfg = stored.record, stored.cfg
    semantics = record.get("semantics")
    if semantics != SEMANTICS:
        yield Difference(RUN, "semantics", semantics, SEMANTICS)
    cell = _cell(cfg, plan, content, semantics)
    if record.get("cell") not in (None, cell):
        yield Difference(RUN, "fingerprint of data, model and settings", record["cell"], cell)


def _cell(cfg: Config, plan: Plan, content: str, semantics: Any) -> str:
    """The cell's fingerprint under other semantics."""
    return name_of(identity(cfg, plan, content, model_fingerprint(cfg.model)) | {"semantics": semantics})


def _environment(stored: dict[str, Any], now: dict[str, Any]) -> Iterator[Difference]:
    """Versions, commit and device."""
    before, after = _flat(stored.get("environment") or {}), _flat(now["environment"])
    for key in dict.fromkeys([*before, *after]):
        if before.get(key) != after.get(key):
            yield Difference(RUN, key, before.get(key), after.get(key))


def _flat(environment: dict[str, Any]) -> dict[str, Any]:
    versions = {f"version of {name}": version for name, version in (environment.get("versions") or {}).items()}
    git = environment.get("git") or {}
    processor = (environment.get("cpu") or {}).get("model")
    return versions | {
        "commit": git.get("commit"),
        "uncommitted changes": git.get("dirty"),
        "device": environment.get("device"),
        "processor": processor,
        "processes": environment.get("processes", 1),
    }
