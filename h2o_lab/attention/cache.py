"""A transformers `Cache` whose layers evict: what `model(...)` and `model.generate` are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from transformers.cache_utils import Cache

from h2o_lab.attention.caps import Caps
from h2o_lab.attention.executors import check_executor
from h2o_lab.attention.layer import EvictionLayer
from h2o_lab.attention.share import WHOLE, HeadShare
from h2o_lab.attention.state import LayerState
from h2o_lab.errors import UserError
from h2o_lab.policies import Budget, Policy

PREFILLS = ("evict", "full")


class EvictionCache(Cache):
    """The KV cache of a whole model under one policy.

    Use it inside `eviction_attention(model)`, as the cache argument of the model or of `generate`.

    Args:
        layers: number of layers of the model.
        policy: what is kept.
        budget: the cap k: one number for all sequences, one per sequence, or a `Budget` that is resolved with
            the number of prompt tokens, counted in the first call without padding. Ignored by the full cache.
        prefill: `evict` (the policy acts from the first token on) or `full` (the first call, the prompt, attends
            to itself in full; then the rule is applied until k entries are left).
        executor: see `attend`.
        seed: seed of policies that draw.
        capacity: slots to allocate where the cap asks for more or there is none; grown when more are needed.
        lengths: the tokens n that a fractional budget counts, one per sequence, for patterns whose period follows
            them; by default those of the first call.
        given: for each layer float32 [B, H, T], numbers by position for policies that rank by `given` (see
            `column_sums`).
        record: whether to record when each token is evicted (`LayerState.evicted_at`).
        share: the heads that this process has, where several share a model.

    Attributes:
        watch: called by each layer after it has attended, with q, k, scale and valid as of `attend`, and
            `LayerState.evicted_at`; None for nobody.

    Raises:
        UserError: an argument is not among those allowed.
    """

    def __init__(
        self,
        layers: int,
        policy: Policy,
        budget: int | Sequence[int] | Budget | None,
        *,
        prefill: str = "evict",
        executor: str = "auto",
        seed: int = 0,
        capacity: int | None = None,
        lengths: Sequence[int] | None = None,
        given: Sequence[torch.Tensor] | None = None,
        record: bool = False,
        share: HeadShare = WHOLE,
    ) -> None:
        if prefill not in PREFILLS:
            raise UserError(f"prefill={prefill} is unknown: it must be one of {', '.join(PREFILLS)}.")
        if policy.compresses_prompt and prefill != "full":
            raise UserError(f"policy {policy.name} compresses a prompt that was read in full: use prefill=full.")
        if policy.two_passes and given is None:
            raise UserError(f"policy {policy.name} ranks by numbers from a first pass: give them (column_sums).")
        if budget is None and policy.budgeted:
            raise UserError(f"policy {policy.name} needs a budget: a number of entries, or a Budget.")
        check_executor(executor)
        self.policy = policy
        self.budget = budget
        self.prefill = prefill
        self.executor = executor
        self.seed = seed
        self.capacity = capacity
        self.lengths = lengths
        self.given = given
        self.record = record
        self.watch: Callable[..., None] | None = None
        self.share = share
        self.evicting = [EvictionLayer(self, index) for index in range(layers)]
        super().__init__(layers=list(self.evicting))

    def caps_for(self, prompt: torch.Tensor, layer: int) -> Caps:
        """A layer's caps for a batch whose prompts have these lengths (int64 [B], padding excluded)."""
        lengths = prompt.tolist()
        if not self.policy.budgeted:
            return Caps.unbounded(len(lengths))
        if isinstance(self.budget, Budget):
            if self.budget.base == "sequence":
                raise UserError("budget_base=sequence needs the continuation's length: give k itself instead.")
            budgets = [self.budget.entries(n, n) for n in lengths]
        elif isinstance(self.budget, int):
            budgets = [self.budget] * len(lengths)
        else:
            budgets = list(self.budget or [])
        if len(budgets) != len(lengths):
            raise UserError(f"{len(budgets)} budgets were given for a batch of {len(lengths)} sequences.")
        entries = [self.policy.layer_entries(k, len(self.evicting))[layer] for k in budgets]
        return Caps.of(self.policy, entries, list(self.lengths or lengths))

    def smallest_caps(self, prompt: torch.Tensor) -> torch.Tensor:
        """int64 [B], the least that a layer may hold; before the first call, for prompts of these lengths."""
        layers = range(len(self.evicting))
        caps = [state.caps for state in self.states] or [self.caps_for(prompt, layer) for layer in layers]
        return torch.stack([cap.k for cap in caps]).amin(dim=0)

    def select(self, rows: torch.Tensor, room: int = 0) -> EvictionCache:
        """An independent copy that holds these rows of the batch (int64 [N], may repeat): a fork.

        The copy continues where this cache stands; neither changes the other. It has slots for `room` entries, or
        as many as this one where they are more.
        """
        twin = EvictionCache(
            len(self.evicting),
            self.policy,
            self.budget,
            prefill=self.prefill,
            executor=self.executor,
            seed=self.seed,
            capacity=self.capacity,
            lengths=[self.lengths[row] for row in rows.tolist()] if self.lengths is not None else None,
            given=[numbers[rows.to(numbers.device)] for numbers in self.given] if self.given is not None else None,
            record=self.record,
            share=self.share,
        )
        for mine, copy in zip(self.evicting, twin.evicting, strict=True):
            copy.state = mine.state.select(rows) if mine.state is not None else None
            copy.length, copy.rolling = mine.length, mine.rolling
            if copy.state is not None:
                copy.state.reserve(room, exactly=True)
        return twin

    def fork(self) -> EvictionCache:
        """An independent copy of the whole batch.

        Raises:
            UserError: nothing has been read yet.
        """
        if not self.states:
            raise UserError("an empty cache cannot be forked: make another one.")
        return self.select(torch.arange(len(self.seen)))

    def forget_evictions(self) -> None:
        """Record no longer when tokens are evicted, and drop what was recorded."""
        self.record = False
        for state in self.states:
            state.evicted_at = None

    @property
    def states(self) -> list[LayerState]:
        """The state of each layer; empty before the first call."""
        return [layer.state for layer in self.evicting if layer.state is not None]

    @property
    def seen(self) -> torch.Tensor:
        """int64 [B], tokens seen by each sequence; evicted tokens are among them, padding is not."""
        return self.states[0].seen.clone() if self.states else torch.zeros(0, dtype=torch.int64)

    @property
    def cut(self) -> torch.Tensor:
        """bool [B], whether a layer's budget was too small for what the policy asks."""
        return torch.stack([state.caps.cut for state in self.states]).any(dim=0)

    @property
    def kv_bytes_resident(self) -> torch.Tensor:
        """int64 [B], bytes of keys and values that each sequence holds, over all layers and processes."""
        return torch.stack([state.kv_bytes_resident for state in self.states]).sum(dim=0) * self.share.count

    @property
    def kv_bytes_reserved(self) -> int:
        """Bytes allocated for keys and values, over all layers and processes."""
        return sum(state.kv_bytes_reserved for state in self.states) * self.share.count

    @property
    def kv_bytes_peak(self) -> int:
        """Most bytes allocated at once: with `prefill: full` one layer holds its whole prompt before it shrinks
        (all layers, where they choose together)."""
        prompts = [layer.prompt_bytes for layer in self.evicting]
        prompt = sum(prompts) if self.policy.by_step else max(prompts, default=0)
        return self.kv_bytes_reserved + prompt * self.share.count

    def crop(self, tokens_to_remove: int) -> None:
        raise UserError("an evicting cache cannot be cropped (assisted decoding): evicted tokens are gone.")
