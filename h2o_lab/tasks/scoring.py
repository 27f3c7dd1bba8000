"""Log-likelihoods of continuations under an eviction policy, with every shared beginning run once.

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
from h2o_lab.tasks.units import Batch, Choice, Trunk, Unit, batches, batches_of_trunks, common_prefix, may_share

if TYPE_CHECKING:
    from h2o_lab.stats import Recorder


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
        batch_tokens: upper bound on the padded tokens of one forward pass (one unit is always run), what was read
            before them and is copied for them included.
        journal: remembers what has been scored; see `h2o_lab.cells`.
        recorder: see `Reader`; each text is then read from its beginning.
        trunks: whether what questions share is read once, where that is exact.
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
    trunks: bool = True
    cost: Cost = field(default_factory=Cost)

    def __post_init__(self) -> None:
        how = (self.prefill, self.positions, self.executor, self.seed)
        self.reader = Reader(self.model, self.policy, *how, self.journal, self.recorder)
        self._read: tuple[Trunk, EvictionCache] | None = None

    def score(
        self, questions: Sequence[Sequence[Choice]], advance: Callable[[int], None] = lambda choices: None
    ) -> list[list[Score]]:
        """Score all choices of all questions; `advance` is told how many choices were done.

        Raises:
            UserError: a text is longer than the model's position table, or the model's numbers are not finite.
        """
        scores: dict[tuple[int, int], Score] = {}
        with self.reader.open():
            for batch in self.batches(questions):
                keys = [key for unit in batch.units for key in unit.key]
                scores.update(zip(keys, self._remembered(batch), strict=True))
                advance(len(keys))
        self._read = None
        self.cost.tokens_computed = self.reader.tokens
        return [[scores[i, j] for j in range(len(choices))] for i, choices in enumerate(questions)]

    def batches(self, questions: Sequence[Sequence[Choice]]) -> list[Batch]:
        """What is read at once, in this order.

        Raises:
            UserError: a text is longer than the model's position table.
        """
        self._check_lengths(questions)
        units = [unit for index, choices in enumerate(questions) for unit in self._units(index, choices)]
        if not self.trunks or self.recorder is not None or not may_share(self.policy, self.prefill):
            return list(batches(units, self.batch_tokens))
        layers = self.model.config.get_text_config(decoder=True).num_hidden_layers
        return list(batches_of_trunks(units, self.batch_tokens, self.policy, layers))

    def _remembered(self, batch: Batch) -> list[Score]:
        """The scores of a batch: from the journal, or computed and noted there.

        The first batch of a trunk counts its tokens, also where a later process has to read it again.
        """
        journal, before = self.reader.journal, self.reader.tokens
        texts = [[u.prefix, [[c.context, c.continuation] for c in u.choices], u.k, u.n] for u in batch.units]
        behind = [[batch.trunk_tokens, batch.opens]] if batch.trunk is not None else []
        key = fingerprint("scores", texts, *behind)
        noted = journal.recall(key)
        if noted is None:
            start = time.perf_counter()
            trunk = self._trunk(batch.trunk)
            own = self.reader.tokens
            scores = self._run(batch.units, trunk) if self.policy.causal else self._run_whole(batch.units)
            noted = {
                "scores": [asdict(score) for score in scores],
                "seconds": time.perf_counter() - start,
                "tokens": self.reader.tokens - own + batch.trunk_tokens * batch.opens,
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
            prefix = common_prefix([choices[j] for j in members])
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

    def _trunk(self, trunk: Trunk | None) -> EvictionCache | None:
        """The cache behind a trunk; kept for the next batch."""
        if trunk is None:
            self._read = None
        elif self._read is None or self._read[0] is not trunk:
            self._read = None  # its memory goes before the next takes some
            k = [trunk.k] if self.policy.budgeted else None
            nowhere = torch.zeros(1, len(trunk.tokens), dtype=torch.bool)
            _, cache = self.reader.start([trunk.tokens], nowhere, k, [trunk.n])
            self._read = trunk, cache
        return self._read[1] if self._read is not None else None

    def _start(
        self, units: list[Unit], wanted: torch.Tensor, trunk: EvictionCache | None = None
    ) -> tuple[torch.Tensor, EvictionCache]:
        """Read the prefixes, or what of them comes behind a trunk: logits where wanted, and the cache."""
        room = max(unit.longest for unit in units)
        if trunk is not None:
            cache = trunk.select(torch.zeros(len(units), dtype=torch.int64), room)
            logits = self.reader.go_on([unit.prefix[_seen(trunk) :] for unit in units], wanted, cache)
        else:
            logits, cache = self.reader.start(
                [unit.prefix for unit in units],
                wanted,
                [unit.k for unit in units] if self.policy.budgeted else None,
                [unit.n for unit in units],
                capacity=room,
            )
        self._allocated(trunk, cache.kv_bytes_peak)
        return logits, cache

    def _allocated(self, trunk: EvictionCache | None, size: int) -> None:
        """So many bytes are there at the same time, besides a trunk."""
        size += trunk.kv_bytes_reserved if trunk is not None else 0
        self.cost.kv_bytes_reserved = max(self.cost.kv_bytes_reserved, size)

    def _run(self, units: list[Unit], trunk: EvictionCache | None) -> list[Score]:
        lengths = torch.tensor([len(unit.prefix) for unit in units]) - _seen(trunk)
        ends = torch.arange(int(lengths.max())) == lengths[:, None] - 1
        logits, cache = self._start(units, ends, trunk)

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
        self._allocated(trunk, cache.kv_bytes_reserved + branches.kv_bytes_reserved)
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


def _seen(trunk: EvictionCache | None) -> int:
    return int(trunk.seen) if trunk is not None else 0


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
