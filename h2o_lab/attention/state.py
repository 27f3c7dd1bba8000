"""What one layer remembers: at most k entries per KV head, in slots that are reused in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from h2o_lab.errors import UserError
from h2o_lab.policies import Policy, Priority
from h2o_lab.policies.budget import SMALLEST

UNBOUNDED = torch.iinfo(torch.int64).max // 4
EMPTY = -1


@dataclass(frozen=True)
class Caps:
    """The cap and the protected sizes of every sequence of a batch, int64 [B] on the host.

    Attributes:
        k: most entries that a head may hold.
        recent, sink: sizes of the protected sets.
        cut: bool [B], whether the cap was too small for what the policy asks.
    """

    k: torch.Tensor
    recent: torch.Tensor
    sink: torch.Tensor
    cut: torch.Tensor

    @classmethod
    def of(cls, policy: Policy, k: Sequence[int]) -> Caps:
        """Resolve a policy under one cap per sequence; the full cache has no cap.

        Raises:
            UserError: a cap is below 2.
        """
        if not policy.evicts:
            return cls.unbounded(len(k))
        if min(k) < SMALLEST:
            raise UserError(f"a cache of k={min(k)} entries cannot be: k must be {SMALLEST} or more.")
        sizes = [policy.protection(n) for n in k]
        recent, sink = (torch.tensor([s[i] for s in sizes], dtype=torch.int64) for i in (0, 1))
        return cls(torch.tensor(list(k), dtype=torch.int64), recent, sink, torch.tensor([s.cut for s in sizes]))

    @classmethod
    def unbounded(cls, batch: int) -> Caps:
        """No cap: nothing is ever evicted."""
        one = torch.ones(batch, dtype=torch.int64)
        return cls(one * UNBOUNDED, one, one * 0, torch.zeros(batch, dtype=torch.bool))

    @property
    def bounded(self) -> bool:
        return bool(self.k.max() < UNBOUNDED)

    def select(self, rows: torch.Tensor) -> Caps:
        rows = rows.cpu()
        return Caps(self.k[rows], self.recent[rows], self.sink[rows], self.cut[rows])


@dataclass
class LayerState:
    """The cache of one layer.

    Entries lie in slots 0 .. held-1 of their head, in no particular order; a slot is reused in place.

    Attributes:
        keys, values: [B, H, C, D] in the model's dtype; C is the largest cap of the
            batch, or less while fewer tokens have been seen.
        positions: int32 [B, H, C], absolute position of each entry in its sequence, EMPTY where there is none.
        scores: float32 [B, H, C], attention received since the entry came in.
        static: float32 [B, H, C], numbers that `Priority.STATIC` ranks by, or None.
        seen: int64 [B] on the host, tokens seen by each sequence, evicted ones included.
        caps: cap and protected sizes of each sequence.
        policy: the rule.
    """

    keys: torch.Tensor
    values: torch.Tensor
    positions: torch.Tensor
    scores: torch.Tensor
    static: torch.Tensor | None
    seen: torch.Tensor
    caps: Caps
    policy: Policy

    @classmethod
    def empty(
        cls,
        policy: Policy,
        caps: Caps,
        like_keys: torch.Tensor,
        like_values: torch.Tensor,
        *,
        capacity: int | None = None,
        static: bool = False,
    ) -> LayerState:
        """An empty state for a batch.

        Args:
            policy: the rule.
            caps: one cap per sequence.
            like_keys, like_values: [B, H, T, D], for shape, dtype and device.
            capacity: slots to allocate where the cap asks for more or there is none, by default T; grown
                when more are needed.
            static: whether entries carry a static priority.
        """
        batch, heads = like_keys.shape[:2]
        slots = min(int(caps.k.max()), capacity or like_keys.shape[2])
        per_entry = (batch, heads, slots)
        device = like_keys.device
        return cls(
            keys=like_keys.new_zeros(*per_entry, like_keys.shape[-1]),
            values=like_values.new_zeros(*per_entry, like_values.shape[-1]),
            positions=torch.full(per_entry, EMPTY, dtype=torch.int32, device=device),
            scores=torch.zeros(per_entry, dtype=torch.float32, device=device),
            static=torch.zeros(per_entry, dtype=torch.float32, device=device) if static else None,
            seen=torch.zeros(batch, dtype=torch.int64),
            caps=caps,
            policy=policy,
        )

    @property
    def held(self) -> torch.Tensor:
        """int64 [B], entries in each head of a sequence: the same for all heads."""
        return torch.minimum(self.seen, self.caps.k)

    @property
    def width(self) -> int:
        """Slots in use by the fullest sequence."""
        return int(self.held.max())

    @property
    def kv_bytes_resident(self) -> torch.Tensor:
        """int64 [B], bytes of the keys and values that each sequence holds."""
        entry = (self.keys.shape[-1] + self.values.shape[-1]) * self.keys.element_size()
        return self.held * (self.keys.shape[1] * entry)

    @property
    def kv_bytes_reserved(self) -> int:
        """Bytes allocated for keys and values of the whole batch."""
        return self.keys.nbytes + self.values.nbytes

    def reserve(self, slots: int) -> None:
        """Make room for `slots` entries per head, or k where that is less; grows by a quarter at least."""
        have, most = self.keys.shape[2], int(self.caps.k.max())
        if min(slots, most) <= have:
            return
        more = min(max(slots, have + have // 4), most) - have
        self.keys = _grow(self.keys, more, 0)
        self.values = _grow(self.values, more, 0)
        self.positions = _grow(self.positions, more, EMPTY)
        self.scores = _grow(self.scores, more, 0)
        if self.static is not None:
            self.static = _grow(self.static, more, 0)

    def select(self, rows: torch.Tensor) -> LayerState:
        """A copy that holds the given rows of the batch, in this order; rows may repeat (fork, beam search)."""
        on_device = rows.to(self.keys.device)
        return replace(
            self,
            **cast(Any, {name: tensor.index_select(0, on_device) for name, tensor in self._tensors()}),
            seen=self.seen[rows.cpu()],
            caps=self.caps.select(rows),
        )

    def _tensors(self) -> list[tuple[str, torch.Tensor]]:
        names = ("keys", "values", "positions", "scores", "static")
        return [(name, tensor) for name in names if (tensor := getattr(self, name)) is not None]

    def priorities(self) -> torch.Tensor:
        """float32 [B, H, C], the value that ranks each entry before the next token comes in."""
        kind = self.policy.priority
        if kind is Priority.STATIC:
            return self.static if self.static is not None else torch.zeros_like(self.scores)
        if kind is Priority.MEAN:
            age = self.seen.to(self.positions.device)[:, None, None] - self.positions
            return self.scores / age.clamp(min=1)
        return self.scores

    def protected(self, now: torch.Tensor) -> torch.Tensor:
        """bool [B, H, C], entries that may not be evicted while `now` (int64 [B]) is the current position."""
        device = self.positions.device
        oldest_recent = (now - self.caps.recent + 1).to(device)[:, None, None]
        sink = self.caps.sink.to(device)[:, None, None]
        return (self.positions >= oldest_recent) | ((self.positions >= 0) & (self.positions < sink))

    def shrunk(self, caps: Caps) -> LayerState:
        """A copy under new caps: the policy's rule, applied after the last token until k entries are left."""
        state = replace(self, caps=caps)
        value = state.priorities().masked_fill(state.protected(self.seen - 1), torch.inf)
        value = value.masked_fill(state.positions < 0, -torch.inf)
        # newest first, then by value: of equal values the smallest position ends last and goes first
        newest = state.positions.argsort(dim=-1, descending=True, stable=True)
        order = newest.gather(-1, value.gather(-1, newest).argsort(dim=-1, descending=True, stable=True))
        kept = order[..., : int(state.held.max())]
        rank = torch.arange(kept.shape[-1], device=kept.device)
        surplus = rank >= state.held.to(kept.device)[:, None, None]
        fresh = LayerState.empty(
            self.policy, caps, self.keys, self.values, capacity=kept.shape[-1], static=self.static is not None
        )
        fresh.seen = self.seen.clone()
        for name, tensor in self._tensors():
            index = kept.unsqueeze(-1).expand(*kept.shape, tensor.shape[-1]) if tensor.dim() == 4 else kept
            getattr(fresh, name)[:, :, : kept.shape[-1]] = tensor.gather(2, index)
        fresh.positions[:, :, : kept.shape[-1]].masked_fill_(surplus, EMPTY)
        return fresh


def _grow(tensor: torch.Tensor, more: int, fill: int) -> torch.Tensor:
    extra = tensor.new_full((*tensor.shape[:2], more, *tensor.shape[3:]), fill)
    return torch.cat([tensor, extra], dim=2)
