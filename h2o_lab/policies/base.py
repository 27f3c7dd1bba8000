"""What a policy is: who is protected, and how the rest are ranked. No executor lives here."""

import itertools
import math
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, NamedTuple

import torch

from h2o_lab.errors import UserError
from h2o_lab.policies.budget import share


class Priority(IntEnum):
    """How unprotected entries are ranked; the smallest goes first, ties by the smallest position."""

    ACCUMULATED = 0
    """Attention received so far, summed over queries (the paper's heavy-hitter score, Algorithm 1)."""
    MEAN = 1
    """Attention received so far, per query that has seen the entry (Appendix B.2)."""
    LAST = 2
    """Attention received from the latest query alone."""
    STATIC = 3
    """A number fixed when the token enters (`Policy.static_priority`); without one, the oldest goes first."""


class Protection(NamedTuple):
    """Sizes of the protected sets for one sequence, in entries."""

    recent: int
    sink: int
    cut: bool
    """Whether the cap was too small for what the policy asks."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A KV-cache eviction policy as data: protected sets x priority, evaluated per KV head.

    Subclasses set defaults; an executor reads the fields and needs no change for a new policy.

    Raises:
        UserError: a field is out of its range.
    """

    name: ClassVar[str]
    evicts: ClassVar[bool] = True
    """False only for the full cache."""

    recent_fraction: float | None = None
    """Protect the newest entries: this share of k, rounded down, at least one entry."""
    recent_tokens: int | None = None
    """Protect this many of the newest entries, the current token included; excludes `recent_fraction`.
    With neither, all of k that the sinks leave."""
    sink_tokens: int = 0
    """Protect the first tokens of the sequence (attention sinks)."""
    priority: Priority = Priority.ACCUMULATED
    group_reduce: str = "sum"
    """How the probabilities of the query heads that share a KV head are combined: `sum` or `max`."""

    def __post_init__(self) -> None:
        if self.recent_fraction is not None and self.recent_tokens is not None:
            raise UserError(
                f"policy {self.name}: set recent_fraction or recent_tokens, not both; null switches one off."
            )
        _check_number(self, "recent_fraction", 0, 1, float)
        _check_number(self, "recent_tokens", 1, math.inf, int)
        _check_number(self, "sink_tokens", 0, math.inf, int)
        if self.recent_fraction == 1 and self.sink_tokens:
            raise UserError(
                f"policy {self.name}: recent_fraction=1 leaves no room for sink_tokens={self.sink_tokens}: "
                "lower it, or set it to null for all that the sinks leave."
            )
        if self.group_reduce not in ("sum", "max"):
            raise UserError(f"policy {self.name}: group_reduce must be sum or max, and is {self.group_reduce!r}.")
        try:
            object.__setattr__(self, "priority", _as_priority(self.priority))
        except (KeyError, ValueError):
            allowed = ", ".join(p.name.lower() for p in Priority)
            raise UserError(
                f"policy {self.name}: priority must be one of {allowed}, and is {self.priority!r}."
            ) from None

    def protection(self, k: int) -> Protection:
        """Protected sizes under a cap of `k` entries; where they do not fit, the sinks are cut first."""
        if self.recent_tokens is not None:
            asked = self.recent_tokens
        elif self.recent_fraction is not None:
            asked = max(1, share(self.recent_fraction, k))
        else:
            asked = max(1, k - self.sink_tokens)
        recent = min(asked, k)
        sink = min(self.sink_tokens, k - recent)
        return Protection(recent, sink, cut=recent < asked or sink < self.sink_tokens)

    def check_tokens(self, k: int) -> None:
        """Refuse a cap that every sample shares and that cannot hold the protected sets.

        Raises:
            UserError: names the sets and the smallest cap that would do.
        """
        if not self.evicts or not self.protection(k).cut:
            return
        enough = next(more for more in itertools.count(k) if not self.protection(more).cut)
        raise UserError(
            f"policy {self.name} protects more recent and sink tokens than budget_tokens={k} can hold: "
            f"budget_tokens must be {enough} or more."
        )

    def static_priority(
        self, positions: torch.Tensor, keys: torch.Tensor, layer: int, seed: int
    ) -> torch.Tensor | None:
        """The numbers that `Priority.STATIC` ranks by, one per KV head and new token.

        Args:
            positions: int64 [B, T], each token's place in its own sequence.
            keys: [B, H, T, D], the new keys.
            layer: index of the layer.
            seed: the run's seed.

        Returns:
            float32 [B, H, T], or None where age alone decides.
        """
        return None

    @property
    def needs_scores(self) -> bool:
        """Whether attention received has to be accounted for."""
        return self.evicts and self.priority is not Priority.STATIC


def _as_priority(value: Priority | str | int) -> Priority:
    return Priority[value.upper()] if isinstance(value, str) else Priority(value)


def _check_number(policy: Policy, field: str, low: float, high: float, kind: type) -> None:
    value = getattr(policy, field)
    if value is None:
        return
    right_type = isinstance(value, (int, kind)) and not isinstance(value, bool)
    if not right_type or not low <= value <= high:
        word = "a number" if kind is float else "a whole number"
        upper = f"to {high:g}" if high < math.inf else "or more"
        raise UserError(f"policy {policy.name}: {field} must be {word}, {low:g} {upper}, and is {value!r}.")
