"""What a policy is: who is protected, and how the rest are ranked. No executor lives here."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from h2o_lab.errors import UserError
from h2o_lab.policies.budget import SMALLEST, share
from h2o_lab.policies.fields import as_priority, check_number, check_word
from h2o_lab.policies.priority import Priority, random_numbers
from h2o_lab.policies.protection import Pattern, Protection

SCOPES = ("head", "layer", "model", "cascade")
PATTERNS = ("strided", "fixed")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A KV-cache eviction policy as data: protected sets x priority x scope.

    Subclasses set defaults; an executor reads the fields and needs no change for a new policy. The first line of
    a subclass's docstring is its rule in `docs/policies.md`.

    Raises:
        UserError: a field is out of its range, or two exclude each other.
    """

    name: ClassVar[str]
    source: ClassVar[str] = ""
    """Paper and section that the rule comes from."""
    neighbours: ClassVar[str] = ""
    """How it differs from the policies next to it, in a sentence."""
    evicts: ClassVar[bool] = True
    """Whether memory is capped; False for the full cache and for policies that only mask."""
    budgeted: ClassVar[bool] = True
    """Whether the budget means anything; False only for the full cache."""
    causal: ClassVar[bool] = True
    """False where later tokens decide what an earlier query sees: each text is then run alone and at once."""
    compresses_prompt: ClassVar[bool] = False
    """Whether the rule is made for `prefill: full` and ranks the prompt once, at its end (`prompt_priority`)."""

    recent_fraction: float | None = None
    """Protect the newest entries: this share of k, rounded down, at least one entry."""
    recent_tokens: int | None = None
    """Protect this many of the newest entries, the current token included; excludes `recent_fraction`.
    With neither, all of k that the other sets leave."""
    sink_tokens: int = 0
    """Protect the first tokens of the sequence (attention sinks)."""
    pattern: str | None = None
    """Protect positions by a static rule: `strided` or `fixed` (Sparse Transformer)."""
    pattern_fraction: float = 0.0
    """Share of k for the pattern, rounded down; beyond it the pattern's oldest member loses protection."""
    stride: int | None = None
    """`strided`: s mod stride = 0. Null: the smallest at which the n tokens of the budget fit the share."""
    block: int | None = None
    """`fixed`: s mod block >= block - block_tail. Null: the smallest at which the n tokens fit the share."""
    block_tail: int = 4
    priority: Priority = Priority.ACCUMULATED
    scope: str = "head"
    """Who ranks: each KV `head`; the `layer` (scores summed over its heads, which keep the same tokens); the
    `model` (summed over all layers, one set for all); `cascade` (summed over this and earlier layers, each set
    within the one before)."""
    group_reduce: str = "sum"
    """How the probabilities of the query heads that share a KV head are combined: `sum` or `max`."""
    taper: float = 0.0
    """k falls linearly over the layers, from k (1 + taper) to k (1 - taper); the mean stays k."""

    def __post_init__(self) -> None:
        check_number(self, "recent_fraction", 0, 1, float, optional=True)
        check_number(self, "recent_tokens", 1, math.inf, int, optional=True)
        check_number(self, "sink_tokens", 0, math.inf, int)
        check_number(self, "pattern_fraction", 0, 1, float)
        check_number(self, "stride", 1, math.inf, int, optional=True)
        check_number(self, "block", 1, math.inf, int, optional=True)
        check_number(self, "block_tail", 1, math.inf, int)
        check_number(self, "taper", -0.9, 0.9, float)
        check_word(self, "group_reduce", ("sum", "max"))
        check_word(self, "scope", SCOPES)
        check_word(self, "pattern", (None, *PATTERNS))
        object.__setattr__(self, "priority", as_priority(self))
        self._check_exclusions()
        self._check_shares()

    def _check_exclusions(self) -> None:
        if self.by_step and self.priority.fixed:
            raise UserError(f"policy {self.name}: scope={self.scope} sums attention: use priority=accumulated.")
        if self.recent_fraction is not None and self.recent_tokens is not None:
            raise UserError(
                f"policy {self.name}: set recent_fraction or recent_tokens, not both; null switches one off."
            )
        if self.scope == "model" and self.taper:
            raise UserError(f"policy {self.name}: scope=model keeps one set for all layers: taper must be 0.")
        if self.scope == "cascade" and (self.taper < 0 or self.pattern):
            raise UserError(
                f"policy {self.name}: scope=cascade nests the layers' sets: taper must be 0 or more, pattern null."
            )

    def _check_shares(self) -> None:
        if (self.pattern is None) != (self.pattern_fraction == 0):
            raise UserError(f"policy {self.name}: pattern and pattern_fraction go together: set both or neither.")
        taken = (self.recent_fraction or 0) + self.pattern_fraction
        if taken > 1 + 1e-9:
            raise UserError(
                f"policy {self.name}: recent_fraction={self.recent_fraction} and pattern_fraction="
                f"{self.pattern_fraction} sum above 1: lower one."
            )
        if self.pattern_fraction > 1 - 1e-9:
            raise UserError(
                f"policy {self.name}: pattern_fraction=1 leaves no room for the current token: lower it."
            )
        if taken > 1 - 1e-9 and self.sink_tokens:
            which = "recent_fraction=1" if not self.pattern_fraction else "the fractions, which sum to 1,"
            raise UserError(
                f"policy {self.name}: {which} leaves no room for sink_tokens={self.sink_tokens}: "
                "lower it, or set it to null for all that the sinks leave."
            )

    def protection(self, k: int, n: int) -> Protection:
        """Protected sizes; where they do not fit, the pattern is cut first, then the sinks.

        Args:
            k: the cap, in entries.
            n: the tokens that a fractional budget counts; a default stride or block follows it.
        """
        patterned = share(self.pattern_fraction, k)
        if self.recent_tokens is not None:
            asked = self.recent_tokens
        elif self.recent_fraction is not None:
            asked = max(1, share(self.recent_fraction, k))
        else:
            asked = max(1, k - self.sink_tokens - patterned)
        recent = min(asked, k)
        sink = min(self.sink_tokens, k - recent)
        room = min(patterned, k - recent - sink)
        cut = recent < asked or sink < self.sink_tokens or room < patterned
        return Protection(recent, sink, cut, self._pattern(room, n))

    def _pattern(self, room: int, n: int) -> Pattern:
        if self.pattern == "strided":
            return Pattern.strided(room, n, self.stride)
        if self.pattern == "fixed":
            return Pattern.fixed(room, n, self.block, self.block_tail)
        return Pattern()

    def slots(self, k: int) -> int:
        """Entries that a head may hold at once under a budget of k entries."""
        return k

    def layer_entries(self, k: int, layers: int) -> list[int]:
        """The budget of each layer, in entries; their mean is k (but for the least of 2 entries)."""
        if not self.taper or layers == 1:
            return [k] * layers
        ideal = [k * (1 + self.taper * (1 - 2 * layer / (layers - 1))) for layer in range(layers)]
        totals = [round(total) for total in itertools.accumulate(ideal)]
        sizes = [after - before for before, after in itertools.pairwise([0, *totals])]
        return [max(SMALLEST, size) for size in sorted(sizes, reverse=self.taper > 0)]

    def check_tokens(self, k: int) -> None:
        """Refuse a cap that every sample shares and that cannot hold the protected sets.

        Raises:
            UserError: names the sets and the smallest cap that would do.
        """
        if not self.budgeted or not self.protection(k, k).cut:
            return
        enough = next(more for more in itertools.count(k) if not self.protection(more, more).cut)
        raise UserError(
            f"policy {self.name} protects more recent and sink tokens than budget_tokens={k} can hold: "
            f"budget_tokens must be {enough} or more."
        )

    def static_priority(
        self, positions: torch.Tensor, keys: torch.Tensor, layer: int, seed: int
    ) -> torch.Tensor | None:
        """The numbers that a fixed priority ranks by, one per KV head and new token.

        Override it for `Priority.STATIC`; a head's numbers must depend on its own keys alone.

        Args:
            positions: int64 [B, T], each token's place in its own sequence.
            keys: [B, H, T, D], the new keys; of some of the heads where processes share a model.
            layer: index of the layer.
            seed: the run's seed.

        Returns:
            float32 [B, H, T], or None where age alone decides.
        """
        if self.priority is Priority.RANDOM:
            return random_numbers(positions, keys.shape[1], layer, seed)
        return None

    def prompt_priority(self, attention: torch.Tensor) -> torch.Tensor:
        """Rank a prompt by what its last queries looked at, for policies that `compresses_prompt`.

        Args:
            attention: float32 [B, H, T], probabilities summed over the window's queries and the group.

        Returns:
            float32 [B, H, T].
        """
        raise NotImplementedError

    @property
    def needs_scores(self) -> bool:
        """Whether attention received has to be accounted for."""
        return self.evicts and not self.priority.fixed

    @property
    def two_passes(self) -> bool:
        """Whether a first pass with the full cache supplies the numbers to rank by."""
        return self.priority is Priority.GIVEN

    @property
    def by_step(self) -> bool:
        """Whether layers depend on each other's last step, so that tokens go one at a time once k is reached."""
        return self.scope in ("model", "cascade")
