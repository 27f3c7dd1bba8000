"""A transformers `Cache` whose layers evict: what `model(...)` and `model.generate` are given."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from h2o_lab.attention.executors import attend, check_executor
from h2o_lab.attention.state import Caps, LayerState
from h2o_lab.errors import UserError
from h2o_lab.policies import Budget, Policy, Priority

PREFILLS = ("evict", "full")
LAYER = "_h2o_lab_layer"
"""Attribute by which the keys that a layer returns lead the attention function back to it."""


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
    ) -> None:
        if prefill not in PREFILLS:
            raise UserError(f"prefill={prefill} is unknown: it must be one of {', '.join(PREFILLS)}.")
        if budget is None and policy.evicts:
            raise UserError(f"policy {policy.name} needs a budget: a number of entries, or a Budget.")
        check_executor(executor, torch.device("cpu"))
        self.policy = policy
        self.budget = budget
        self.prefill = prefill
        self.executor = executor
        self.seed = seed
        self.capacity = capacity
        self.evicting = [EvictionLayer(self, index) for index in range(layers)]
        super().__init__(layers=list(self.evicting))

    def caps_for(self, prompt: torch.Tensor) -> Caps:
        """The caps of a batch whose prompts have these lengths (int64 [B], padding excluded)."""
        lengths = prompt.tolist()
        if not self.policy.evicts:
            return Caps.unbounded(len(lengths))
        if isinstance(self.budget, Budget):
            if self.budget.base == "sequence":
                raise UserError("budget_base=sequence needs the continuation's length: give k itself instead.")
            return Caps.of(self.policy, [self.budget.entries(n, n) for n in lengths])
        if isinstance(self.budget, int):
            return Caps.of(self.policy, [self.budget] * len(lengths))
        caps = list(self.budget or [])
        if len(caps) != len(lengths):
            raise UserError(f"{len(caps)} budgets were given for a batch of {len(lengths)} sequences.")
        return Caps.of(self.policy, caps)

    def select(self, rows: torch.Tensor) -> EvictionCache:
        """An independent copy that holds these rows of the batch (int64 [N], may repeat): a fork.

        The copy continues where this cache stands; neither changes the other.
        """
        twin = EvictionCache(
            len(self.evicting),
            self.policy,
            self.budget,
            prefill=self.prefill,
            executor=self.executor,
            seed=self.seed,
            capacity=self.capacity,
        )
        for mine, copy in zip(self.evicting, twin.evicting, strict=True):
            copy.state = mine.state.select(rows) if mine.state is not None else None
            copy.length = mine.length
        return twin

    def fork(self) -> EvictionCache:
        """An independent copy of the whole batch."""
        return self.select(torch.arange(len(self.seen)))

    @property
    def states(self) -> list[LayerState]:
        """The state of each layer; empty before the first call."""
        return [layer.state for layer in self.evicting if layer.state is not None]

    @property
    def seen(self) -> torch.Tensor:
        """int64 [B], tokens seen by each sequence; evicted tokens are among them, padding is not."""
        return self.states[0].seen if self.states else torch.zeros(0, dtype=torch.int64)

    @property
    def kv_bytes_resident(self) -> torch.Tensor:
        """int64 [B], bytes of keys and values that each sequence holds, over all layers."""
        return torch.stack([state.kv_bytes_resident for state in self.states]).sum(dim=0)

    @property
    def kv_bytes_reserved(self) -> int:
        """Bytes allocated for keys and values, over all layers."""
        return sum(state.kv_bytes_reserved for state in self.states)

    @property
    def kv_bytes_peak(self) -> int:
        """Most bytes allocated at once: with `prefill: full` one layer holds its whole prompt before it shrinks."""
        prompt = max((layer.prompt_bytes for layer in self.evicting), default=0)
        return self.kv_bytes_reserved + prompt

    def crop(self, tokens_to_remove: int) -> None:
        raise UserError("an evicting cache cannot be cropped (assisted decoding): evicted tokens are gone.")


class EvictionLayer(CacheLayerMixin):
    """One layer: hands new keys through, and keeps the state that `attend` works on."""

    is_compileable = False
    is_croppable = False
    is_sliding = False
    supports_early_init = False

    def __init__(self, cache: EvictionCache, index: int) -> None:
        super().__init__()
        self.cache = cache
        self.index = index
        self.state: LayerState | None = None
        self.length = 0
        """Columns fed so far, padding included: what transformers calls the sequence length."""
        self.prompt_bytes = 0
        """Bytes that the prompt took before `prefill: full` let it shrink."""
        self._waiting = False

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the new keys and values as they are; the attention function inserts them."""
        if self._waiting:
            raise UserError(
                "the model did not attend through its EvictionCache: call it inside eviction_attention(model), "
                "with a model whose attention takes the keys as the cache returns them."
            )
        self.is_initialized = self._waiting = True
        self.length += key_states.shape[-2]
        setattr(key_states, LAYER, self)
        return key_states, value_states

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, valid: torch.Tensor | None
    ) -> torch.Tensor:
        """Attention of the new tokens under the policy; shapes as in `h2o_lab.attention.attend`."""
        self._waiting = False
        prompt_in_full = self.state is None and self.cache.prefill == "full" and self.cache.policy.evicts
        caps = self._caps(k, valid) if self.state is None else self.state.caps
        static = self._static_priority(k, valid)
        if self.state is None:
            self.state = LayerState.empty(
                self.cache.policy,
                Caps.unbounded(k.shape[0]) if prompt_in_full else caps,
                k,
                v,
                capacity=self.cache.capacity,
                static=static is not None,
            )
        out = attend(q, k, v, self.state, scale=scale, valid=valid, static=static, executor=self.cache.executor)
        if prompt_in_full:
            self.prompt_bytes = self.state.kv_bytes_reserved
            self.state = self.state.shrunk(caps)
        return out

    def _caps(self, k: torch.Tensor, valid: torch.Tensor | None) -> Caps:
        batch, _, length, _ = k.shape
        return self.cache.caps_for(torch.full((batch,), length) if valid is None else valid.sum(dim=1).cpu().long())

    def _static_priority(self, k: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor | None:
        if self.cache.policy.priority is not Priority.STATIC:
            return None
        batch, _, length, _ = k.shape
        seen = self.state.seen if self.state is not None else torch.zeros(batch, dtype=torch.int64)
        order = torch.arange(length)[None] if valid is None else valid.long().cumsum(dim=1).cpu() - 1
        positions = (seen[:, None] + order).to(k.device)
        return self.cache.policy.static_priority(positions, k, self.index, self.cache.seed)

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.state = None
        self.length = self.prompt_bytes = 0
        self.is_initialized = self._waiting = False

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        if self.state is not None:
            self.state = self.state.select(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.state is not None:
            self.state = self.state.select(torch.arange(len(self.state.seen)).repeat_interleave(repeats))
