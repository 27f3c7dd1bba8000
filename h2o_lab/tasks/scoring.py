"""Log-likelihoods of continuations under an eviction policy, with every shared context run once.

Knows tokens and models; nothing about benchmarks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from h2o_lab.attention import EvictionCache
from h2o_lab.attention.hook import position_limit
from h2o_lab.cells import Journal, fingerprint
from h2o_lab.errors import UserError
from h2o_lab.policies import Budget, Policy
from h2o_lab.tasks.reader import Reader

if TYPE_CHECKING:
    from h2o_lab.stats import Recorder


@dataclass(frozen=True)
class Choice:
    """One continuation of one context, as token ids; neither is empty."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.context + self.continuation


@dataclass(frozen=True)
class Score:
    """What one choice got.

    Attributes:
        logprob: sum of log-likelihoods of the continuation's tokens, nats.
        greedy: whether every token of the continuation was the model's first choice.
        tokens: number of scored tokens.
        k: the cap (for the full cache: the tokens fed).
        cut: whether the cap was too small for what the policy asks.
        kv_bytes: bytes of KV cache resident in all layers when the last token had been fed.
    """

    logprob: float
    greedy: bool
    tokens: int
    k: int
    cut: bool
    kv_bytes: int


@dataclass
class Cost:
    """What a whole evaluation took: tokens fed to the model, seconds in it, the largest KV allocation in bytes."""

    tokens_computed: int = 0
    seconds: float = 0.0
    kv_bytes_reserved: int = 0


@dataclass(frozen=True)
class Unit:
    """A prefix that is run once, and the choices that branch off it; `key` says which choices they are."""

    prefix: tuple[int, ...]
    choices: tuple[Choice, ...]
    key: tuple[tuple[int, int], ...]
    k: int
    n: int
    """The tokens that a fractional budget counts."""

    @property
    def longest_branch(self) -> int:
        return max(len(choice.tokens) for choice in self.choices) - len(self.prefix) - 1


@dataclass
class Scorer:
    """Scores questions, each a list of choices, under one policy and budget.

    Args:
        model: a causal language model in eval mode.
        policy: what is kept.
        budget: the cap; None for the full cache. With base `prompt` all choices of a question share one k, from
            its longest context; with `sequence` each choice has its own and is run alone.
        prefill: `evict` or `full` (see `EvictionCache`); the prompt is the context.
        positions: `original` or `rolling` (see `eviction_attention`).
        executor: see `attend`.
        seed: seed of policies that draw.
        batch_tokens: upper bound on the padded tokens of one forward pass (one unit is always run).
        journal: remembers what has been scored; see `h2o_lab.cells`.
        recorder: see `Reader`.
    """

    model: PreTrainedModel
    policy: Policy
    budget: Budget | None
    prefill: str = "evict"
    positions: str = "original"
    executor: str = "auto"
    seed: int = 0
    batch_tokens: int = 2048
    journal: Journal = field(default_factory=Journal)
    recorder: Recorder | None = None
    cost: Cost = field(default_factory=Cost)

    def __post_init__(self) -> None:
        how = (self.prefill, self.positions, self.executor, self.seed)
        self.reader = Reader(self.model, self.policy, *how, self.journal, self.recorder)

    def score(
        self, questions: Sequence[Sequence[Choice]], advance: Callable[[int], None] = lambda choices: None
    ) -> list[list[Score]]:
        """Score all choices of all questions; `advance` is told how many choices were done.

        Raises:
            UserError: a text is longer than the model's position table, or the model's numbers are not finite.
        """
        self._check_lengths(questions)
        units = [unit for index, choices in enumerate(questions) for unit in self._units(index, choices)]
        scores: dict[tuple[int, int], Score] = {}
        with self.reader.open():
            for batch in self._batches(units):
                keys = [key for unit in batch for key in unit.key]
                scores.update(zip(keys, self._remembered(batch), strict=True))
                advance(len(keys))
        self.cost.tokens_computed = self.reader.tokens
        return [[scores[i, j] for j in range(len(choices))] for i, choices in enumerate(questions)]

    def _remembered(self, batch: list[Unit]) -> list[Score]:
        """The scores of a batch: from the journal, or computed and noted there."""
        journal, before = self.reader.journal, self.reader.tokens
        texts = [[u.prefix, [[c.context, c.continuation] for c in u.choices], u.k, u.n] for u in batch]
        key = fingerprint("scores", texts)
        noted = journal.recall(key)
        if noted is None:
            start = time.perf_counter()
            scores = self._run(batch) if self.policy.causal else self._run_whole(batch)
            noted = {
                "scores": [asdict(score) for score in scores],
                "seconds": time.perf_counter() - start,
                "tokens": self.reader.tokens - before,
                "kv_bytes_reserved": self.cost.kv_bytes_reserved,
            }
            journal.note(key, noted)
        self.reader.tokens = before + noted["tokens"]
        self.cost.seconds += noted["seconds"]
        self.cost.kv_bytes_reserved = max(self.cost.kv_bytes_reserved, noted["kv_bytes_reserved"])
        return [Score(**score) for score in noted["scores"]]

    def _check_lengths(self, questions: Sequence[Sequence[Choice]]) -> None:
        limit = position_limit(self.model.config)
        longest = max((len(choice.tokens) - 1 for choices in questions for choice in choices), default=0)
        if limit is not None and longest > limit:
            raise UserError(
                f"a question has {longest} tokens and the model's position table has {limit}: "
                "use fewer task.num_fewshot, or choose a rotary model."
            )

    def _units(self, index: int, choices: Sequence[Choice]) -> Iterator[Unit]:
        """Group the choices of a question by what they may share, exactly."""
        by_sequence = self.policy.budgeted and self.budget is not None and self.budget.base == "sequence"
        per_choice = by_sequence or not self.policy.causal
        whole_prompts = self.policy.evicts and self.prefill == "full"
        groups: dict[object, list[int]] = {}
        for j, choice in enumerate(choices):
            groups.setdefault(j if per_choice else choice.context if whole_prompts else None, []).append(j)
        longest_prompt = max(len(choice.context) for choice in choices)
        for members in groups.values():
            prefix = _common_prefix([choices[j] for j in members])
            parts = [members] if prefix else [[j] for j in members]
            for part in parts:
                first = choices[part[0]]
                prompt = len(first.context) if by_sequence else longest_prompt
                sequence = max(len(choices[j].tokens) for j in part)
                yield Unit(
                    # where the end of a text decides about its beginning, it is run at once
                    (prefix or first.context) if self.policy.causal else first.tokens[:-1],
                    tuple(choices[j] for j in part),
                    tuple((index, j) for j in part),
                    self.budget.entries(prompt, sequence) if self.budget is not None else sequence - 1,
                    sequence if by_sequence else prompt,
                )

    def _batches(self, units: list[Unit]) -> Iterator[list[Unit]]:
        """Units of similar length together, longest first, within `batch_tokens`."""
        batch: list[Unit] = []
        for unit in sorted(units, key=lambda u: (-len(u.prefix), u.key)):
            grown = [*batch, unit]
            padded = len(grown[0].prefix) * len(grown)
            branches = sum(len(u.choices) for u in grown) * max(u.longest_branch for u in grown)
            if batch and max(padded, branches) > self.batch_tokens:
                yield batch
                grown = [unit]
            batch = grown
        if batch:
            yield batch

    def _start(self, units: list[Unit], wanted: torch.Tensor) -> tuple[torch.Tensor, EvictionCache]:
        """Read the prefixes: logits where wanted, and the cache."""
        logits, cache = self.reader.start(
            [unit.prefix for unit in units],
            wanted,
            [unit.k for unit in units] if self.policy.budgeted else None,
            [unit.n for unit in units],
            capacity=max(len(choice.tokens) for unit in units for choice in unit.choices),
        )
        self.cost.kv_bytes_reserved = max(self.cost.kv_bytes_reserved, cache.kv_bytes_peak)
        return logits, cache

    def _run(self, units: list[Unit]) -> list[Score]:
        lengths = torch.tensor([len(unit.prefix) for unit in units])
        ends = torch.arange(int(lengths.max())) == lengths[:, None] - 1
        logits, cache = self._start(units, ends)

        owner = torch.tensor([i for i, unit in enumerate(units) for _ in unit.choices])
        choices = [choice for unit in units for choice in unit.choices]
        rests = [choice.tokens[len(units[i].prefix) :] for i, choice in zip(owner.tolist(), choices, strict=True)]
        branches = cache.select(owner)
        logprobs, greedy = _compare(logits[owner], torch.tensor([rest[0] for rest in rests]))
        # a context longer than the shared prefix: its next token is given, not scored
        scored = torch.tensor([len(c.continuation) == len(rest) for c, rest in zip(choices, rests, strict=True)])
        totals = torch.where(scored, logprobs, 0.0).double()
        matches = torch.where(scored, greedy, True)
        if max(len(rest) for rest in rests) > 1:
            self._follow(rests, choices, branches, totals, matches)
        together = cache.kv_bytes_reserved + branches.kv_bytes_reserved
        self.cost.kv_bytes_reserved = max(self.cost.kv_bytes_reserved, together)
        return self._scores(units, owner.tolist(), choices, totals, matches, branches)

    def _run_whole(self, units: list[Unit]) -> list[Score]:
        """Units whose prefix is the whole text of their one choice."""
        choices = [unit.choices[0] for unit in units]
        lengths = torch.tensor([len(unit.prefix) for unit in units])
        first = torch.tensor([len(choice.context) - 1 for choice in choices])
        column = torch.arange(int(lengths.max()))
        wanted = (column >= first[:, None]) & (column < lengths[:, None])
        logits, cache = self._start(units, wanted)
        targets = torch.tensor([token for choice in choices for token in choice.continuation])
        totals, matches = torch.zeros(len(units)).double(), torch.ones(len(units), dtype=torch.bool)
        _add_up(logits, targets, wanted, totals, matches)
        return self._scores(units, range(len(units)), choices, totals, matches, cache)

    def _scores(self, units, owner, choices, totals, matches, cache: EvictionCache) -> list[Score]:
        if not totals.isfinite().all():
            raise UserError(
                f"the model's log-likelihoods are not finite in {self.model.dtype}: use model.dtype=float32 or "
                "bfloat16, or check its weights."
            )
        return [
            Score(total, match, len(choice.continuation), units[i].k if self.policy.budgeted else fed, cut, size)
            for total, match, choice, i, fed, cut, size in zip(
                totals.tolist(),
                matches.tolist(),
                choices,
                owner,
                cache.seen.tolist(),
                cache.cut.tolist(),
                cache.kv_bytes_resident.tolist(),
                strict=True,
            )
        ]

    def _follow(self, rests, choices, cache: EvictionCache, totals, matches) -> None:
        """Feed what follows the shared prefix, and add up the scores of the continuation's tokens."""
        feeds = [rest[:-1] for rest in rests]
        wanted = torch.zeros(len(rests), max(len(feed) for feed in feeds), dtype=torch.bool)
        targets: list[int] = []
        for row, (rest, choice) in enumerate(zip(rests, choices, strict=True)):
            first = max(len(rest) - len(choice.continuation), 1)
            wanted[row, first - 1 : len(rest) - 1] = True
            targets.extend(rest[first:])
        logits = self.reader.go_on(feeds, wanted, cache)
        if targets:
            _add_up(logits, torch.tensor(targets), wanted, totals, matches)


def _common_prefix(choices: list[Choice]) -> tuple[int, ...]:
    """Longest common prefix of the choices' tokens, within every context."""
    shortest = min(len(choice.context) for choice in choices)
    first, *others = (choice.tokens for choice in choices)
    length = 0
    while length < shortest and all(other[length] == first[length] for other in others):
        length += 1
    return first[:length]


def _add_up(logits, targets, wanted: torch.Tensor, totals: torch.Tensor, matches: torch.Tensor) -> None:
    """Add the log-likelihoods of the targets (int64 [N], where `wanted`) to their rows, in place."""
    logprobs, greedy = _compare(logits, targets)
    rows = wanted.nonzero()[:, 0]
    totals.index_add_(0, rows, logprobs.double())
    matches &= torch.ones_like(matches).scatter_reduce(0, rows, greedy, "amin")


def _compare(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-likelihood float32 [N], is the target the first choice bool [N]) for logits [N, V]."""
    logits = logits.float()
    chosen = logits.gather(1, targets[:, None]).squeeze(1)
    return chosen - logits.logsumexp(dim=1), logits.argmax(dim=1) == targets
