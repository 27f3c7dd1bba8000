"""The cap and the protected sizes of a batch, resolved from a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from h2o_lab.errors import UserError
from h2o_lab.policies import Policy, Protection
from h2o_lab.policies.budget import SMALLEST

UNBOUNDED = torch.iinfo(torch.int64).max // 4


@dataclass(frozen=True)
class Caps:
    """One number per sequence of a batch, int64 [B] on the host.

    Attributes:
        budget: the budget k, in entries.
        k: most entries that a head may hold at once: the budget, unless the policy says otherwise.
        recent, sink: sizes of the protected sets.
        share, period, first, width: the pattern (see `h2o_lab.policies.Pattern`).
        cut: bool [B], whether the budget was too small for what the policy asks.
    """

    budget: torch.Tensor
    k: torch.Tensor
    recent: torch.Tensor
    sink: torch.Tensor
    share: torch.Tensor
    period: torch.Tensor
    first: torch.Tensor
    width: torch.Tensor
    cut: torch.Tensor

    @classmethod
    def of(cls, policy: Policy, k: Sequence[int], n: Sequence[int] | None = None) -> Caps:
        """Resolve a policy under one budget per sequence.

        Args:
            policy: the rule.
            k: the budgets, in entries.
            n: the tokens that a fractional budget counts, for patterns whose period follows them; k where None.

        Raises:
            UserError: a budget is below 2.
        """
        if not policy.budgeted:
            return cls.unbounded(len(k))
        if min(k) < SMALLEST:
            raise UserError(f"a cache of k={min(k)} entries cannot be: k must be {SMALLEST} or more.")
        sizes = [policy.protection(entries, tokens) for entries, tokens in zip(k, n or k, strict=True)]
        held = [policy.slots(entries) if policy.evicts else UNBOUNDED for entries in k]
        return cls.from_sizes(list(k), held, sizes)

    @classmethod
    def from_sizes(cls, budget: list[int], k: list[int], sizes: list[Protection]) -> Caps:
        """Line up what each sequence may hold and protects."""
        patterns = zip(*(s.pattern for s in sizes), strict=True)
        columns = (budget, k, [s.recent for s in sizes], [s.sink for s in sizes], *patterns)
        numbers = [torch.tensor(column, dtype=torch.int64) for column in columns]
        return cls(*numbers, torch.tensor([s.cut for s in sizes]))  # type: ignore[call-arg]

    @classmethod
    def unbounded(cls, batch: int) -> Caps:
        """No cap: nothing is ever evicted."""
        return cls.from_sizes([UNBOUNDED] * batch, [UNBOUNDED] * batch, [Protection(1, 0, False)] * batch)

    @property
    def bounded(self) -> bool:
        return bool(self.k.max() < UNBOUNDED)

    @cached_property
    def table(self) -> NDArray[np.int64]:
        """int64 [B, 7]: k, recent, sink, share, period, first, width."""
        sizes = (self.k, self.recent, self.sink, self.share, self.period, self.first, self.width)
        return torch.stack(sizes, dim=1).numpy()

    def table_on(self, device: torch.device) -> torch.Tensor:
        """The same table on a device, copied there once."""
        if device not in self._tables:
            self._tables[device] = torch.from_numpy(self.table).to(device)
        return self._tables[device]

    @cached_property
    def _tables(self) -> dict[torch.device, torch.Tensor]:
        return {}

    def select(self, rows: torch.Tensor) -> Caps:
        rows = rows.cpu()
        return Caps(*(getattr(self, field.name)[rows] for field in fields(self)))

    def to(self, device: torch.device) -> Caps:
        """The numbers as int64 [B, 1, 1] on a device, to compare with entries."""
        return Caps(*(getattr(self, field.name).to(device)[:, None, None] for field in fields(self)))
