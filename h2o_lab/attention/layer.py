"""One layer of an `EvictionCache`: from the keys that transformers hands over to the state behind `attend`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers.cache_utils import CacheLayerMixin

from h2o_lab.attention.caps import Caps
from h2o_lab.attention.executors import attend
from h2o_lab.attention.observation import observe
from h2o_lab.attention.padding import no_padding, token_counts
from h2o_lab.attention.rotary import Rotary
from h2o_lab.attention.scopes import rank_layers, shrink_layers
from h2o_lab.attention.state import LayerState
from h2o_lab.errors import UserError
from h2o_lab.policies import Priority, SparsePolicy

if TYPE_CHECKING:
    from h2o_lab.attention.cache import EvictionCache

LAYER = "_h2o_lab_layer"
"""Attribute by which the keys that a layer returns lead the attention function back to it."""


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
        self.rolling = False
        """Whether its positions roll."""
        self.length = 0
        """Columns fed so far, padding included: what transformers calls the sequence length."""
        self.prompt_bytes = 0
        """Bytes that the prompt took before `prefill: full` let it shrink."""
        self._waiting = False
        self._prepared: LayerState | None = None

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
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float,
        valid: torch.Tensor | None,
        rotary: Rotary | None = None,
    ) -> torch.Tensor:
        """Attention of the new tokens under the policy; shapes as in `h2o_lab.attention.attend`."""
        self._waiting = False
        cache, policy = self.cache, self.cache.policy
        if valid is None:
            valid = no_padding(k.shape[0], k.shape[2], k.device)
        first = self.state is None
        self._check_given(valid)
        prompt_in_full = first and cache.prefill == "full" and policy.evicts
        caps = cache.caps_for(token_counts(valid), self.index) if first else None
        if policy.by_step and self.index == 0 and not prompt_in_full:
            self._rank_layers(valid)
        static = self._static_priority(k, valid)
        if self.state is None:
            assert caps is not None
            self._prepare(token_counts(valid), k, v, static, rotary)
            if prompt_in_full:
                self.state = self._empty(Caps.unbounded(len(k)), k, v, static, rotary)
            elif self._prepared is not None and self._prepared.takes(k, v):
                self.state = self._prepared
            else:
                self.state = self._empty(caps, k, v, static, rotary)
        elif self.rolling != (rotary is not None):
            raise UserError("a cache that was filled with positions=rolling must stay with them, and vice versa.")
        elif self.state.keys.device != k.device:  # it comes from a checkpoint
            self.state = self.state.to(k.device)
        self.rolling, self.state.rotary = rotary is not None, rotary
        out = attend(q, k, v, self.state, scale=scale, valid=valid, static=static, executor=cache.executor)
        if cache.watch is not None:
            cache.watch(q, k, scale, valid, self.state.evicted_at)
        if prompt_in_full:
            assert caps is not None
            self._shrink(q, scale, valid, caps)
        self._prepared = None
        return out

    def _prepare(self, lengths: torch.Tensor, k, v, static, rotary: Rotary | None) -> None:
        """At the first layer of a text, make the empty states of all, and what they will keep beside.

        Made one by one, between the tensors that the layers compute, they would split the gaps that these leave in
        the heap: a process would grow by several times what it holds.
        """
        if self.index == 0 and k.device.type == "cpu" and not self.cache.policy.by_step:
            for layer in self.cache.evicting:
                caps = self.cache.caps_for(lengths, layer.index)
                layer._prepared = layer._empty(caps, k, v, static, rotary)
                _ = caps.table  # made when it is first asked for

    def _empty(self, caps: Caps, k, v, static, rotary: Rotary | None) -> LayerState:
        cache = self.cache
        sparse = isinstance(cache.policy, SparsePolicy)
        if sparse and rotary is not None:
            raise UserError(
                f"policy {cache.policy.name} keeps everything, so that there are no positions to roll: use "
                "positions=original."
            )
        state = LayerState.empty(
            cache.policy,
            caps,
            k,
            v,
            capacity=cache.capacity,
            static=static is not None,
            record=cache.record,
            rotary=rotary,
        )
        if sparse and cache.given is not None:
            state.columns = cache.given[self.index].to(k.device)
        return state

    def _shrink(self, q: torch.Tensor, scale: float, valid: torch.Tensor, caps: Caps) -> None:
        """After a prompt in full: keep what the rule keeps; scopes across layers wait for the last one."""
        assert self.state is not None
        cache, policy = self.cache, self.cache.policy
        self.prompt_bytes = self.state.kv_bytes_reserved
        if policy.compresses_prompt:
            assert policy.recent_tokens is not None
            static = policy.prompt_priority(observe(q, self.state, scale, valid, policy.recent_tokens))
            if policy.scope != "head":
                static = static.sum(dim=1, keepdim=True).expand_as(static).contiguous()
            self.state.static = static
        if not policy.by_step:
            self.state = self.state.shrunk(caps, into=self._prepared)
        elif self.index == len(cache.evicting) - 1:
            lengths = token_counts(valid)
            every = [cache.caps_for(lengths, layer) for layer in range(len(cache.evicting))]
            for layer, state in zip(cache.evicting, shrink_layers(cache.states, every), strict=True):
                layer.state = state

    def _rank_layers(self, valid: torch.Tensor) -> None:
        """Before a token, at the first layer: what scopes across layers rank by."""
        counts = token_counts(valid)
        states = self.cache.states
        seen = states[0].seen if states else torch.zeros_like(counts)
        if valid.shape[1] > 1 and bool((seen + counts > self.cache.smallest_caps(counts)).any()):
            raise UserError(
                f"policy {self.cache.policy.name} lets layers wait for each other's last step: give it one token "
                "at a time once its cap is reached, or use prefill=full."
            )
        if valid.shape[1] == 1 and states:
            rank_layers(states)

    def _check_given(self, valid: torch.Tensor) -> None:
        """Numbers from a first pass cover the text that the pass has read, and no more."""
        if self.cache.given is None:
            return
        counts = token_counts(valid)
        seen = self.state.seen if self.state is not None else torch.zeros_like(counts)
        known = self.cache.given[self.index].shape[2]
        if int((seen + counts).max()) > known:
            raise UserError(
                f"policy {self.cache.policy.name} knows numbers for {known} tokens and is given more: it scores "
                "texts that a first pass has read, and cannot generate."
            )

    def _static_priority(self, k: torch.Tensor, valid: torch.Tensor) -> torch.Tensor | None:
        policy, cache = self.cache.policy, self.cache
        if not policy.priority.fixed or isinstance(policy, SparsePolicy):
            return None
        seen = self.state.seen if self.state is not None else torch.zeros(len(k), dtype=torch.int64)
        positions = (seen.to(k.device)[:, None] + valid.long().cumsum(dim=1) - 1).clamp(min=0)
        if policy.two_passes:
            assert cache.given is not None
            numbers = cache.given[self.index].to(k.device)
            index = positions.clamp(max=numbers.shape[2] - 1)[:, None].expand(-1, k.shape[1], -1)
            return numbers.gather(2, index)
        if policy.priority is Priority.RANDOM and cache.share.count > 1:
            return self._draws_of_share(positions, k)
        return policy.static_priority(positions, k, self.index, cache.seed)

    def _draws_of_share(self, positions: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """A head draws by its number in the whole model, whatever process has it."""
        share, cache = self.cache.share, self.cache
        every = k[:, :1].expand(-1, k.shape[1] * share.count, -1, -1)  # only their number counts
        draws = cache.policy.static_priority(positions, every, self.index, cache.seed)
        assert draws is not None
        return share.part_of(draws)

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0  # a mask says which new columns are padding, and nothing else

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.state = None
        self.length = self.prompt_bytes = 0
        self.is_initialized = self._waiting = False
        self._prepared = None

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        if self.state is not None:
            self.state = self.state.select(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.state is not None:
            self.state = self.state.select(torch.arange(len(self.state.seen)).repeat_interleave(repeats))
