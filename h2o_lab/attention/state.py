"""What one layer remembers: at most k entries per KV head, in slots that are reused in place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from h2o_lab.attention.caps import Caps
from h2o_lab.attention.rotary import Rotary
from h2o_lab.policies import Policy, Priority
from h2o_lab.policies.protection import is_member, oldest_protected

EMPTY = -1
NEVER = torch.iinfo(torch.int32).max


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
        rotary: rotates keys and queries by their virtual position (`positions: rolling`); None where they come
            rotated, or the model has no rotary positions.
        ranking: float32 [B, H, C], what ranks the entries instead of the layer's own scores, for scopes beyond
            one layer; good for the next token alone.
        evicted_at: int32 [B, H, T], by position of each token, the position of the token that it made room
            for, or NEVER; None where it is not recorded.
        companion: the state of the policy that runs beside a `SparsePolicy`.
        columns: float32 [B, H, T], what each token receives from all queries of the text, where it is known.
    """

    keys: torch.Tensor
    values: torch.Tensor
    positions: torch.Tensor
    scores: torch.Tensor
    static: torch.Tensor | None
    seen: torch.Tensor
    caps: Caps
    policy: Policy
    rotary: Rotary | None = None
    ranking: torch.Tensor | None = None
    evicted_at: torch.Tensor | None = None
    companion: LayerState | None = None
    columns: torch.Tensor | None = None

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
        record: bool = False,
        rotary: Rotary | None = None,
    ) -> LayerState:
        """An empty state for a batch.

        Args:
            policy: the rule.
            caps: one cap per sequence.
            like_keys, like_values: [B, H, T, D], for shape, dtype and device.
            capacity: slots to allocate where the cap asks for more or there is none, by default T; grown
                when more are needed.
            static: whether entries carry a static priority.
            record: whether to record when each token is evicted.
            rotary: see the class.
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
            rotary=rotary,
            evicted_at=torch.empty(batch, heads, 0, dtype=torch.int32, device=device) if record else None,
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

    def reserve(self, slots: int, exactly: bool = False) -> None:
        """Make room for `slots` entries per head, or k where that is less; grows by a quarter at least, unless no
        more are expected (`exactly`)."""
        if self.evicted_at is not None and slots > (known := self.evicted_at.shape[2]):
            self.evicted_at = _grow(self.evicted_at, max(slots - known, known // 4), NEVER)
        have, most = self.keys.shape[2], int(self.caps.k.max())
        if min(slots, most) <= have:
            return
        more = min(slots if exactly else max(slots, have + have // 4), most) - have
        self.keys = _grow(self.keys, more, 0)
        self.values = _grow(self.values, more, 0)
        self.positions = _grow(self.positions, more, EMPTY)
        self.scores = _grow(self.scores, more, 0)
        if self.static is not None:
            self.static = _grow(self.static, more, 0)
        if self.ranking is not None:
            self.ranking = _grow(self.ranking, more, 0)

    def select(self, rows: torch.Tensor) -> LayerState:
        """A copy that holds the given rows of the batch, in this order; rows may repeat (fork, beam search)."""
        on_device = rows.to(self.keys.device)
        tensors = [*self._tensors(), ("evicted_at", self.evicted_at), ("columns", self.columns)]
        return replace(
            self,
            **cast(Any, {name: x.index_select(0, on_device) for name, x in tensors if x is not None}),
            ranking=None,
            companion=self.companion.select(rows) if self.companion is not None else None,
            seen=self.seen[rows.cpu()],
            caps=self.caps.select(rows),
        )

    def to(self, device: torch.device) -> LayerState:
        """The same, on another device; what lies on the host by definition stays there."""
        tensors = [*self._tensors(), ("evicted_at", self.evicted_at), ("columns", self.columns)]
        return replace(self, **cast(Any, {name: x.to(device) for name, x in tensors if x is not None}))

    def _tensors(self) -> list[tuple[str, torch.Tensor]]:
        """What is kept per entry."""
        names = ("keys", "values", "positions", "scores", "static")
        return [(name, tensor) for name in names if (tensor := getattr(self, name)) is not None]

    def priorities(self) -> torch.Tensor:
        """float32 [B, H, C], the value that ranks each entry before the next token comes in."""
        kind = self.policy.priority
        if kind.fixed:
            return self.static if self.static is not None else torch.zeros_like(self.scores)
        scores = self.scores if self.ranking is None else self.ranking
        if kind is Priority.MEAN:
            age = self.seen.to(self.positions.device)[:, None, None] - self.positions
            return scores / age.clamp(min=1)
        return scores

    def protected(self, now: torch.Tensor) -> torch.Tensor:
        """bool [B, H, C], entries that may not be evicted while `now` (int64 [B]) is the current position."""
        caps = self.caps.to(self.positions.device)
        newest_open = now.to(self.positions.device)[:, None, None] - caps.recent
        recent = self.positions > newest_open
        sink = (self.positions >= 0) & (self.positions < caps.sink)
        pattern = is_member(self.positions, caps.period, caps.first, caps.width)
        floor = oldest_protected(newest_open, caps.share, caps.period, caps.first, caps.width)
        return recent | sink | (pattern & (self.positions >= floor))

    def visible_at(self, queries: torch.Tensor) -> torch.Tensor:
        """bool [B, H, n, T], which of the T tokens seen were held when the queries at these positions attended.

        Needs `record`; queries are int64 [B, n].
        """
        assert self.evicted_at is not None
        evicted_at = self.evicted_at[:, :, None, : int(self.seen.max())]
        token = torch.arange(evicted_at.shape[-1], device=queries.device)
        query = queries[:, None, :, None]
        return (token <= query) & (evicted_at > query)

    def rotated_keys(self, width: int) -> torch.Tensor:
        """float32 [B, H, width, D], keys as a query meets them; rotated by rank where positions roll."""
        keys = self.keys[:, :, :width].float()
        if self.rotary is None:
            return keys
        return self.rotary.rotate(keys, self.ranks(width), self.width)

    def ranks(self, width: int) -> torch.Tensor:
        """int64 [B, H, width], the place of each entry among those of its head by age; 0 for the oldest."""
        positions = self.positions[:, :, :width]
        empty = (positions == EMPTY).sum(dim=-1, keepdim=True)
        return (positions.argsort(dim=-1).argsort(dim=-1) - empty).clamp(min=0)

    def takes(self, keys: torch.Tensor, values: torch.Tensor, slots: int | None = None) -> bool:
        """Whether entries like these keys and values, [B, H, T, D], can lie here; in just so many slots, if any."""
        pairs = ((self.keys, keys), (self.values, values))
        return slots in (None, self.keys.shape[2]) and all(
            (mine.shape[:2], mine.shape[3], mine.dtype, mine.device)
            == (theirs.shape[:2], theirs.shape[3], theirs.dtype, theirs.device)
            for mine, theirs in pairs
        )

    def shrunk(self, caps: Caps, into: LayerState | None = None) -> LayerState:
        """What the policy's rule leaves, applied after the last token until k entries are left.

        Args:
            caps: the new caps.
            into: an empty state under these caps, filled and returned where it is of the right size.
        """
        state = replace(self, caps=caps)
        value = state.priorities().masked_fill(state.protected(self.seen - 1), torch.inf)
        value = value.masked_fill(state.positions < 0, -torch.inf)
        # newest first, then by value: of equal values the smallest position ends last and goes first
        newest = state.positions.argsort(dim=-1, descending=True, stable=True)
        order = newest.gather(-1, value.gather(-1, newest).argsort(dim=-1, descending=True, stable=True))
        kept = order[..., : int(state.held.max())]
        rank = torch.arange(kept.shape[-1], device=kept.device)
        surplus = rank >= state.held.to(kept.device)[:, None, None]
        slots, static = kept.shape[-1], self.static is not None
        fresh = into
        if fresh is None or not fresh.takes(self.keys, self.values, slots) or (fresh.static is not None) != static:
            fresh = LayerState.empty(
                self.policy,
                caps,
                self.keys,
                self.values,
                capacity=slots,
                static=static,
                rotary=self.rotary,
            )
        fresh.seen = self.seen.clone()
        for name, tensor in self._tensors():
            index = kept.unsqueeze(-1).expand(*kept.shape, tensor.shape[-1]) if tensor.dim() == 4 else kept
            getattr(fresh, name)[:, :, :slots] = tensor.gather(2, index)
        fresh.positions[:, :, :slots].masked_fill_(surplus, EMPTY)
        if self.evicted_at is not None:
            fresh.evicted_at = self._evicted_by(fresh)
        return fresh

    def _evicted_by(self, fresh: LayerState) -> torch.Tensor:
        """`evicted_at` after shrinking: what is gone made room for the next token."""
        assert self.evicted_at is not None
        end = self.evicted_at.shape[2]
        table = _grow(self.evicted_at, 1, NEVER)  # the last column takes what EMPTY slots write
        next_token = self.seen.to(table.device, torch.int32)[:, None, None]
        before, after = (x.long().masked_fill(x == EMPTY, end) for x in (self.positions, fresh.positions))
        table.scatter_(2, before, next_token.expand(self.positions.shape))
        table.scatter_(2, after, NEVER)
        return table[:, :, :end]


def _grow(tensor: torch.Tensor, more: int, fill: int) -> torch.Tensor:
    extra = tensor.new_full((*tensor.shape[:2], more, *tensor.shape[3:]), fill)
    return torch.cat([tensor, extra], dim=2)
