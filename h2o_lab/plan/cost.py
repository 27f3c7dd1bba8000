"""What a cell takes, as arithmetic on the lengths of its prompts: tokens, calls and bytes of KV cache.

The batches are those that the run itself forms, so that everything but what depends on the texts that will be
generated is exact: of those, the longest that may come are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from h2o_lab.attention.hook import position_limit
from h2o_lab.config import Config, PerplexityConfig
from h2o_lab.errors import UserError
from h2o_lab.memory import kv_bytes
from h2o_lab.plan.work import Prompts, Questions, Texts, Work, stand_in
from h2o_lab.tasks import generation, perplexity
from h2o_lab.tasks.scoring import Scorer
from h2o_lab.tasks.units import Batch as Scored

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from h2o_lab.checks import Plan
    from h2o_lab.policies import Budget, Policy


@dataclass(frozen=True)
class Batch:
    """Sequences that are in the model at the same time.

    Attributes:
        read: tokens fed, many in one call; two passes count twice.
        once: those of them that are fed once, however many questions there are.
        steps: calls that follow, with one token of each sequence.
        caps: the budget k of each sequence, in entries (for the full cache: the tokens fed).
        entries: what each sequence holds at its end, in entries of a head, by layer.
        reserved: most bytes allocated for KV at once.
        sequences: how many lie in memory at once.
    """

    read: int
    steps: int
    caps: list[int]
    entries: list[tuple[int, ...]]
    reserved: int
    sequences: int
    once: int = 0

    @property
    def tokens(self) -> int:
        """All tokens fed."""
        return self.read + self.steps * len(self.caps)


@dataclass(frozen=True)
class Cost:
    """What a cell takes. Where not all of a task was looked at, sums are scaled to the whole.

    Attributes:
        samples: records in the result.
        tokens: fed to the model; for texts that are generated, at most.
        read: those of them that are fed many at once.
        steps: calls with one token of each sequence of a batch.
        k_mean, k_min, k_max: budget of a sequence, in entries.
        kv_mean, kv_max: bytes of KV cache that a sequence holds at its end.
        entries: of the largest sequence, by layer.
        kv_batch: most bytes allocated for KV at once.
        batch: most sequences in memory at once.
        exact: whether all of the task was looked at.
    """

    samples: int
    tokens: int
    read: int
    steps: int
    k_mean: float
    k_min: int
    k_max: int
    kv_mean: float
    kv_max: int
    entries: tuple[int, ...]
    kv_batch: int
    batch: int
    exact: bool


@dataclass(frozen=True)
class Held:
    """How much a policy holds of a model's KV cache.

    Attributes:
        config: the model's.
        dtype: of keys and values, as in `model.dtype`.
        policy: what is kept.
        prefill: `evict` or `full`.
    """

    config: PretrainedConfig
    dtype: str
    policy: Policy
    prefill: str

    @property
    def layers(self) -> int:
        return self.config.get_text_config(decoder=True).num_hidden_layers

    @property
    def prompt_in_full(self) -> bool:
        """Whether a layer holds its whole prompt before it evicts."""
        return self.prefill == "full" and self.policy.evicts

    def caps(self, k: int | None) -> list[int | None]:
        """The most entries that a head may hold in each layer under a budget of k; None where there is no cap."""
        if k is None or not self.policy.evicts:
            return [None] * self.layers
        return [self.policy.slots(entries) for entries in self.policy.layer_entries(k, self.layers)]

    def entries(self, seen: int, k: int | None) -> tuple[int, ...]:
        """What a head holds in each layer after `seen` tokens."""
        return tuple(_within(seen, cap) for cap in self.caps(k))

    def reserved(
        self, ks: Sequence[int | None], first: int, last: int, step: int = 1, rows: int | None = None
    ) -> int:
        """Bytes allocated for a batch when its longest sequence has seen `last` tokens.

        Args:
            ks: the budgets of the sequences.
            first: slots that are asked for at the beginning.
            last: tokens of the longest sequence.
            step: tokens that come at once behind the first.
            rows: number of sequences, if not one per budget.
        """
        caps = [None if None in layer else max(cast(list[int], layer)) for layer in self._layerwise(ks)]
        count = len(ks) if rows is None else rows
        return self._bytes([slots(cap, first, last, step) for cap in caps], count)

    def prompt(self, rows: int, width: int) -> int:
        """Bytes that prompts take before they shrink: of one layer, or of all where layers choose together."""
        if not self.prompt_in_full:
            return 0
        whole = self._bytes([width] * self.layers, rows)
        return whole if self.policy.by_step else whole // self.layers

    def held(self, lengths: Sequence[int], ks: Sequence[int | None]) -> int:
        """Entries of the fullest head after prompts of these lengths: what is allocated once they have shrunk."""
        return max(max(self.entries(n, k)) for n, k in zip(lengths, ks, strict=True))

    def _layerwise(self, ks: Sequence[int | None]) -> list[tuple[int | None, ...]]:
        return list(zip(*(self.caps(k) for k in ks), strict=True))

    def _bytes(self, entries: list[int], rows: int) -> int:
        return kv_bytes(self.config, entries, rows, self.dtype)


def slots(cap: int | None, first: int, last: int, step: int = 1) -> int:
    """Slots of a layer when its longest sequence has `last` tokens: they grow by a quarter at least, up to the cap.

    Args:
        cap: most entries; None for no cap.
        first: slots asked for at the beginning.
        last: tokens at the end.
        step: tokens that come at once behind the first.
    """
    have, seen = _within(first, cap), first
    while have < _within(last, cap):
        seen = min(seen + step, last)
        if have < _within(seen, cap):
            have = _within(max(seen, have + have // 4), cap)
    return have


def _within(number: int, cap: int | None) -> int:
    return number if cap is None else min(number, cap)


def cost_of(work: Work, cfg: Config, plan: Plan, config: PretrainedConfig) -> Cost:
    """What a cell takes.

    Args:
        work: what its task gives to the model.
        cfg: its configuration.
        plan: its policy and budget.
        config: the model's.

    Raises:
        UserError: a text is longer than the model's position table.
    """
    batches = [batch for part in work.parts for batch in batches_of(part, cfg, plan, config)]
    scale = work.total / work.looked_at
    once = sum(batch.once for batch in batches)
    caps = [k for batch in batches for k in batch.caps]
    entries = [held for batch in batches for held in batch.entries]
    sizes = [kv_bytes(config, held, 1, cfg.model.dtype) for held in entries]
    return Cost(
        samples=_samples(work, cfg),
        tokens=once + round(scale * (sum(batch.tokens for batch in batches) - once)),
        read=once + round(scale * (sum(batch.read for batch in batches) - once)),
        steps=round(scale * sum(batch.steps for batch in batches)),
        k_mean=sum(caps) / len(caps),
        k_min=min(caps),
        k_max=max(caps),
        kv_mean=sum(sizes) / len(sizes),
        kv_max=max(sizes),
        entries=max(zip(sizes, entries, strict=True))[1],
        kv_batch=max(batch.reserved for batch in batches),
        batch=max(batch.sequences for batch in batches),
        exact=work.looked_at == work.total,
    )


def batches_of(
    part: Questions | Prompts | Texts, cfg: Config, plan: Plan, config: PretrainedConfig
) -> Iterator[Batch]:
    """The batches of a part, as the run forms them."""
    held = Held(config, cfg.model.dtype, plan.policy, cfg.prefill)
    if isinstance(part, Questions):
        yield from _scored(part, cfg, plan, held)
    elif isinstance(part, Prompts):
        yield from _continued(part, cfg, plan.budget, held)
    else:
        for text in part.texts:
            yield from _predicted(len(text), cast(PerplexityConfig, cfg.task), plan.budget, held)


def batches_to_score(part: Questions, cfg: Config, plan: Plan, config: PretrainedConfig) -> list[Scored]:
    """The prefixes that are read together, and the choices that branch off each.

    Raises:
        UserError: a question is longer than the model's position table.
    """
    budget = plan.budget
    if part.rolling and budget is not None and budget.fraction is not None:
        budget = replace(budget, base="sequence")
    scorer = Scorer(
        stand_in(config),
        plan.policy,
        budget,
        cfg.prefill,
        batch_tokens=cfg.task.batch_tokens,
        trunks=cfg.stats.name == "none",
    )
    return scorer.batches(part.questions)


def _scored(part: Questions, cfg: Config, plan: Plan, held: Held) -> Iterator[Batch]:
    policy = plan.policy
    for batch in batches_to_score(part, cfg, plan, held.config):
        units, trunk = batch.units, batch.trunk_tokens
        once = trunk * batch.opens
        prefixes = [len(unit.prefix) for unit in units]
        seen = [(len(choice.tokens) - 1, unit.k) for unit in units for choice in unit.choices]
        read = (sum(prefixes) - len(units) * trunk) * (2 if policy.two_passes else 1) + once
        ks = [unit.k if policy.budgeted else None for unit in units]
        room = max(unit.longest for unit in units)
        start = held.held(prefixes, ks) if held.prompt_in_full else room
        reserved = held.reserved(ks, start, start)
        peak = reserved + held.prompt(len(units), room)
        if policy.causal:
            longest = max(length for length, _ in seen)
            behind = [len(choice.tokens) - 1 - len(unit.prefix) for unit in units for choice in unit.choices]
            end = max(start, longest) if any(behind) else start
            peak = max(peak, reserved + held.reserved(ks, start, end, longest, len(seen)))
            read += sum(behind)
        yield Batch(
            read=read,
            steps=0,
            caps=[k if policy.budgeted else length for length, k in seen],
            entries=[held.entries(length, k if policy.budgeted else None) for length, k in seen],
            reserved=peak + (held.reserved(ks[:1], trunk, trunk) if trunk else 0),
            sequences=len(units) + (len(seen) if policy.causal else 0) + bool(trunk),
            once=once,
        )


def _continued(part: Prompts, cfg: Config, budget: Budget | None, held: Held) -> Iterator[Batch]:
    new = part.new_tokens
    _check_room(max(map(len, part.prompts)) + new - 1, held.config)
    for members in generation._batches(part.prompts, new, cfg.task.batch_tokens):
        lengths = [len(part.prompts[i]) for i in members]
        ks = [budget.entries(n, n + new) if budget is not None else None for n in lengths]
        first = held.held(lengths, ks) if held.prompt_in_full else max(lengths)
        ends = [n + new - 1 for n in lengths]
        yield Batch(
            read=sum(lengths),
            steps=new - 1,
            caps=[k if k is not None else end for k, end in zip(ks, ends, strict=True)],
            entries=[held.entries(end, k) for end, k in zip(ends, ks, strict=True)],
            reserved=held.reserved(ks, first, max(ends)) + held.prompt(len(members), max(lengths)),
            sequences=len(members),
        )


def _predicted(length: int, task: PerplexityConfig, budget: Budget | None, held: Held) -> Iterator[Batch]:
    """A text in windows, or as one stream; the last token of each is only a target."""
    passes = 2 if held.policy.two_passes else 1
    if task.mode == "streaming":
        k = budget.entries(length, length) if budget is not None else None
        _check_room(length - 1, held.config)
        begin = min(task.chunk, length - 1)
        first = held.held([begin], [k]) if held.prompt_in_full else begin
        yield Batch(
            read=passes * (length - 1),
            steps=0,
            caps=[k if k is not None else length - 1],
            entries=[held.entries(length - 1, k)],
            reserved=held.reserved([k], first, length - 1, task.chunk) + held.prompt(1, begin),
            sequences=1,
        )
        return
    for starts, window, _ in perplexity._batches(length, task):
        k = budget.entries(window, window) if budget is not None else None
        _check_room(window - 1, held.config)
        rows = len(starts)
        yield Batch(
            read=passes * rows * (window - 1),
            steps=0,
            caps=[k if k is not None else window - 1] * rows,
            entries=[held.entries(window - 1, k)] * rows,
            reserved=held.reserved([k] * rows, window - 1, window - 1),
            sequences=rows,
        )


def _check_room(longest: int, config: PretrainedConfig) -> None:
    limit = position_limit(config)
    if limit is not None and longest > limit:
        raise UserError(
            f"a text needs {longest} positions and the model's table has {limit}: shorten the texts, or choose a "
            "rotary model."
        )


def _samples(work: Work, cfg: Config) -> int:
    """Records in the result: questions, documents, windows or stretches."""
    if cfg.task.kind != "perplexity":
        return work.total
    task: Any = cfg.task
    texts = [len(text) for part in work.parts if isinstance(part, Texts) for text in part.texts]
    if task.mode == "streaming":
        return sum((length - 1) // task.every for length in texts)
    return sum(len(starts) for length in texts for starts, _, _ in perplexity._batches(length, task))
