"""What differs between two samples, field by field."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

TOLERANCE = 1e-4
"""How far two numbers may be apart, relative to the larger."""
NEAR_ZERO = 1e-2
"""The absolute tolerance, as a share of the relative one: what is left of sums that cancel."""
LEFT_OUT = ("seconds", "process_bytes", "path")
"""Fields that say how a run went, not what it computed."""
ABSENT = "absent"


@dataclass(frozen=True)
class Difference:
    """A field of a sample (or of the run), as stored and now; what is not there is `absent`."""

    where: str
    field: str
    stored: Any
    now: Any

    @property
    def off(self) -> float | None:
        """How far two numbers are apart, relative to the larger; None for anything else."""
        if not (_is_number(self.stored) and _is_number(self.now)) or self.stored == self.now:
            return None
        return abs(self.stored - self.now) / max(abs(self.stored), abs(self.now))


def name_of_sample(sample: dict[str, Any]) -> str:
    """What tells a sample from the others: its place in the task."""
    if "start" in sample:
        return f"{sample.get('title')}, window at {sample['start']}"
    if "doc_id" in sample:
        depth = f", depth {sample['depth']:g}" if "depth" in sample else ""
        return f"{sample['doc_id']}{depth}"
    return f"{sample.get('title')}, to {sample.get('tokens')}"


def compare_samples(
    stored: Sequence[dict[str, Any]], now: Sequence[dict[str, Any]], tolerance: float = TOLERANCE
) -> list[Difference]:
    """What differs in the samples that were computed now; stored ones that were not are left alone.

    Args:
        stored: all samples of a result.
        now: some of them, computed again.
        tolerance: see `differences`.
    """
    known = {name_of_sample(sample): sample for sample in stored}
    found: list[Difference] = []
    for sample in now:
        name = name_of_sample(sample)
        if name in known:
            found += [Difference(name, *rest) for rest in differences(known[name], sample, tolerance)]
        else:
            found.append(Difference(name, "", ABSENT, "a sample"))
    return found


def differences(
    stored: Any, now: Any, tolerance: float = TOLERANCE, at: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """(field, stored value, value now) of what differs between plain values.

    Texts, truth values and whole numbers have to be equal. Other numbers may be apart by `tolerance` of the larger,
    or by a hundredth of it in absolute terms. Fields of the whole in `LEFT_OUT` are not looked at.
    """
    if isinstance(stored, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*stored, *now]):
            if at or key not in LEFT_OUT:
                yield from differences(
                    stored.get(key, ABSENT), now.get(key, ABSENT), tolerance, f"{at}.{key}".lstrip(".")
                )
    elif isinstance(stored, list) and isinstance(now, list) and len(stored) == len(now):
        for place, (one, other) in enumerate(zip(stored, now, strict=True)):
            yield from differences(one, other, tolerance, f"{at}.{place}".lstrip("."))
    elif not _same(stored, now, tolerance):
        yield at, stored, now


def _same(stored: Any, now: Any, tolerance: float) -> bool:
    if _is_number(stored) and _is_number(now) and (isinstance(stored, float) or isinstance(now, float)):
        return math.isclose(stored, now, rel_tol=tolerance, abs_tol=tolerance * NEAR_ZERO)
    return type(stored) is type(now) and bool(stored == now)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
