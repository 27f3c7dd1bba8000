"""What is read at once when choices are scored: beginnings that choices or whole questions share, read once.

Knows tokens and budgets; no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from h2o_lab.policies import Policy

BEGINNING = 32
"""Tokens at least that questions share where they are read behind a trunk."""
WORTH = 128
"""Tokens at least that a trunk saves: it takes calls of its own, and so do its questions apart from the others."""


@dataclass(frozen=True)
class Choice:
    """One continuation of one context, as token ids; neither is empty."""

    context: tuple[int, ...]
    continuation: tuple[int, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.context + self.continuation


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
        return self.longest - len(self.prefix) - 1

    @property
    def longest(self) -> int:
        """Tokens of its longest choice, with the context."""
        return max(len(choice.tokens) for choice in self.choices)


@dataclass(frozen=True, eq=False)
class Trunk:
    """What several units begin with, under one budget: read once, and forked for each.

    Attributes:
        tokens: shorter than the prefix of each unit.
        k, n: as of a unit, good for all of them.
    """

    tokens: tuple[int, ...]
    k: int
    n: int


@dataclass(frozen=True)
class Batch:
    """Units that are read at once, from their beginning or from the end of a trunk.

    Attributes:
        units: what is read.
        trunk: what all of them begin with, if it is read for itself.
        opens: whether this is the first batch of its trunk.
    """

    units: list[Unit]
    trunk: Trunk | None = None
    opens: bool = False

    @property
    def trunk_tokens(self) -> int:
        """Tokens that every unit finds read."""
        return len(self.trunk.tokens) if self.trunk is not None else 0


def may_share(policy: Policy, prefill: str) -> bool:
    """Whether a text can go on from a copy of what another one began with, and be what it is alone.

    Not where its end decides about its beginning: later tokens, a first pass over the whole, or a prompt that is
    attended to in full before it shrinks.
    """
    return policy.causal and not policy.two_passes and not (policy.evicts and prefill == "full")


def batches(units: Sequence[Unit], batch_tokens: int) -> Iterator[Batch]:
    """Units of similar length together, longest first, within `batch_tokens`."""
    for part in _split(units, batch_tokens):
        yield Batch(part)


def batches_of_trunks(units: Sequence[Unit], batch_tokens: int, policy: Policy, layers: int) -> Iterator[Batch]:
    """The same behind trunks where units have one, then the others.

    In a batch a unit counts with its trunk, which is copied for it: memory is that of batches without trunks, and
    the trunk's own.

    Args:
        units: what is to be read.
        batch_tokens: see `Scorer`.
        policy: one that `may_share`.
        layers: of the model.
    """
    alike: dict[object, list[Unit]] = {}
    for unit in units:
        alike.setdefault((unit.prefix[:BEGINNING], _rule(policy, unit, layers)), []).append(unit)
    alone: list[Unit] = []
    for members in alike.values():
        tokens = _trunk_tokens(members)
        if len(tokens) < BEGINNING or (len(members) - 1) * len(tokens) < WORTH:
            alone += members
            continue
        trunk = Trunk(tokens, members[0].k, members[0].n)
        for number, part in enumerate(_split(members, batch_tokens)):
            yield Batch(part, trunk, opens=number == 0)
    yield from batches(alone, batch_tokens)


def common_prefix(choices: Sequence[Choice]) -> tuple[int, ...]:
    """Longest common prefix of the choices' tokens, within every context."""
    return _common([choice.tokens for choice in choices], min(len(choice.context) for choice in choices))


def _rule(policy: Policy, unit: Unit, layers: int) -> object:
    """What a layer's cache may hold and protects: units with the same rule evict the same."""
    if not policy.budgeted:
        return None
    return unit.k, tuple(policy.protection(entries, unit.n) for entries in policy.layer_entries(unit.k, layers))


def _trunk_tokens(units: Sequence[Unit]) -> tuple[int, ...]:
    """Longest common prefix that leaves each unit a token to read, whose logits come before the choices."""
    return _common([unit.prefix for unit in units], min(len(unit.prefix) for unit in units) - 1)


def _common(texts: Sequence[tuple[int, ...]], most: int) -> tuple[int, ...]:
    """Longest common prefix, of `most` tokens at most: that of the first and the last in the order of tuples."""
    first, last = min(texts), max(texts)
    length = 0
    while length < most and first[length] == last[length]:
        length += 1
    return first[:length]


def _split(units: Sequence[Unit], batch_tokens: int) -> Iterator[list[Unit]]:
    batch: list[Unit] = []
    for unit in sorted(units, key=lambda u: (-len(u.prefix), u.key)):
        grown = [*batch, unit]
        padded = len(grown[0].prefix) * len(grown)
        branches = sum(len(u.choices) for u in grown) * max(u.longest_branch for u in grown)
        if batch and max(padded, branches) > batch_tokens:
            yield batch
            grown = [unit]
        batch = grown
    if batch:
        yield batch
