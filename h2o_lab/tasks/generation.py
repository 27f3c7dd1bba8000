"""Text generated under a policy: batched, stopped exactly, and the same whatever a prompt is batched with."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from h2o_lab.attention import EvictionCache
from h2o_lab.attention.hook import position_limit
from h2o_lab.cells import fingerprint
from h2o_lab.errors import UserError
from h2o_lab.policies import Budget, Policy
from h2o_lab.progress import progress
from h2o_lab.tasks.evaluation import Evaluation
from h2o_lab.tasks.reader import Reader


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn and when a text ends.

    Attributes:
        max_new_tokens: most tokens to generate.
        temperature: 0 for the most likely token.
        top_p: the smallest set of tokens with this probability is drawn from; 1 for all.
        stop: strings that end a text; they are not part of it.
        seed: of the draws; each prompt has a generator of its own.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UserError(f"max_new_tokens={self.max_new_tokens} is out of range: it must be 1 or more.")
        if not self.temperature >= 0:
            raise UserError(f"temperature={self.temperature} is out of range: it must be 0 or more.")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p={self.top_p} is out of range: it must be in (0, 1].")
        if "" in self.stop:
            raise UserError("stop holds an empty string: it would end every text at once.")


@dataclass
class Generated:
    """What came after one prompt.

    Attributes:
        tokens: ids generated, without the end token; the stop string may be among them.
        text: what they say, cut before the first stop string.
        ended_by: `end` (the model's end token), `stop`, or `length`.
        kv_bytes: bytes of KV cache resident when the last token had been fed.
    """

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    ended_by: str = "length"
    kv_bytes: int = 0


def generate(
    reader: Reader,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    k: Sequence[int] | None,
    sampling: Sampling,
    names: Sequence[int] | None = None,
    n: Sequence[int] | None = None,
) -> tuple[list[Generated], EvictionCache]:
    """Continue a batch of prompts; use it inside `reader.open()`.

    Args:
        reader: the model and the policy.
        tokenizer: the model's.
        prompts: token ids, none empty.
        k: budget of each, in entries; None for the full cache.
        sampling: how to draw and when to stop.
        names: one number per prompt that its draws depend on, so that they do not depend on the batch.
        n: the tokens that a fractional budget counts, for each; by default those of the prompt.

    Returns:
        One result per prompt, and the cache.

    Raises:
        UserError: the policy looks ahead, or the model's numbers are not finite.
    """
    check_generates(reader.policy)
    ends = torch.zeros(len(prompts), max(len(prompt) for prompt in prompts), dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        ends[row, len(prompt) - 1] = True
    logits, cache = reader.start(prompts, ends, k, n or [len(prompt) for prompt in prompts])
    draws = [torch.Generator().manual_seed(_mix(sampling.seed, name)) for name in names or range(len(prompts))]
    results = [Generated() for _ in prompts]
    running = list(range(len(prompts)))
    stops = _end_tokens(reader, tokenizer)
    for step in range(sampling.max_new_tokens):
        if not logits.isfinite().all():
            raise UserError(f"the model's logits are not finite in {reader.model.dtype}: use model.dtype=float32.")
        chosen = [_draw(row, sampling, draws[i]) for row, i in zip(logits.float(), running, strict=True)]
        for i, token in zip(running, reader.agreed(chosen), strict=True):
            _append(results[i], token, tokenizer, sampling.stop, stops)
        still = [i for i in running if results[i].ended_by == "length"]
        last = step + 1 == sampling.max_new_tokens
        if last or not still:
            break
        texts = [results[i].tokens[-1:] if i in still else [] for i in range(len(prompts))]
        wanted = torch.tensor([[i in still] for i in range(len(prompts))])
        logits = reader.go_on(texts, wanted, cache)
        running = still
    for result, size in zip(results, cache.kv_bytes_resident.tolist(), strict=True):
        result.kv_bytes = size
    return results, cache


def check_generates(policy: Policy) -> None:
    """Refuse a policy that needs to know what comes.

    Raises:
        UserError: names it.
    """
    if not policy.causal:
        raise UserError(f"policy {policy.name} looks at tokens to come: it cannot generate, only score texts.")


def _append(
    result: Generated, token: int, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str], ends: set[int]
) -> None:
    if token in ends:
        result.ended_by = "end"
        return
    result.tokens.append(token)
    text = str(tokenizer.decode(result.tokens, skip_special_tokens=True))
    found = [at for word in stop if (at := text.find(word)) >= 0]
    result.text = text[: min(found)] if found else text
    if found:
        result.ended_by = "stop"


def _draw(logits: torch.Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """One token by temperature and nucleus; logits float32 [V]."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    p = ((logits - logits.max()).double() / sampling.temperature).softmax(dim=-1)
    if sampling.top_p < 1:
        ordered, index = p.sort(descending=True)
        outside = ordered.cumsum(dim=0) - ordered >= sampling.top_p
        p = torch.zeros_like(p).scatter(0, index, ordered.masked_fill(outside, 0))
    return int(torch.multinomial(p, 1, generator=generator))


def _end_tokens(reader: Reader, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Ids that end a text, as the model's generation settings and its tokenizer say."""
    given = getattr(reader.model.generation_config, "eos_token_id", None)
    listed = given if isinstance(given, list) else [given]
    return {int(token) for token in [*listed, tokenizer.eos_token_id] if token is not None}


def _mix(seed: int, name: int) -> int:
    return (seed * 1_000_003 + name) % 2**63


@dataclass
class Generations:
    """All prompts of a task, continued: one result and one budget k each (for the full cache: the tokens fed)."""

    results: list[Generated]
    caps: list[int]
    cut: int
    kv_reserved: int
    seconds: float

    def add(self, batch: Sequence[int], noted: dict[str, Any]) -> None:
        """Take over what the prompts of these indices got, in the words of the journal."""
        for i, result, k in zip(batch, noted["results"], noted["caps"], strict=True):
            self.results[i], self.caps[i] = Generated(**result), k
        self.cut += noted["cut"]
        self.kv_reserved = max(self.kv_reserved, noted["kv_reserved"])
        self.seconds += noted["seconds"]

    def evaluation(
        self,
        metrics: dict[str, float],
        samples: list[dict[str, Any]],
        origin: str,
        tokens: int,
        details: dict[str, Any] | None = None,
    ) -> Evaluation:
        """What a task hands to the runner that has judged them; `tokens` are those that the model was fed."""
        return Evaluation(
            metrics=metrics,
            samples=samples,
            origin=origin,
            caps=self.caps,
            cut=self.cut,
            kv_resident=[result.kv_bytes for result in self.results],
            kv_reserved=self.kv_reserved,
            tokens_computed=tokens,
            tokens_scored=sum(len(result.tokens) for result in self.results),
            seconds=self.seconds,
            details=details or {},
        )


def generate_all(
    reader: Reader,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    budget: Budget | None,
    sampling: Sampling,
    *,
    batch_tokens: int,
    label: str,
) -> Generations:
    """Continue any number of prompts, in batches of similar length within `batch_tokens`.

    Raises:
        UserError: as `generate`, or a prompt is longer than the model's position table.
    """
    _check_lengths(reader, prompts, sampling.max_new_tokens)
    found = Generations([Generated() for _ in prompts], [0] * len(prompts), 0, 0, 0.0)
    with reader.open(), progress(label, len(prompts), "texts") as advance:
        for batch in _batches(prompts, sampling.max_new_tokens, batch_tokens):
            texts = [prompts[i] for i in batch]
            ks = ns = None
            if budget is not None:
                wholes = [len(text) + sampling.max_new_tokens for text in texts]
                ks = [budget.entries(len(text), whole) for text, whole in zip(texts, wholes, strict=True)]
                ns = wholes if budget.base == "sequence" else None
            before = reader.tokens
            key = fingerprint("texts", batch, texts, ks, ns, asdict(sampling))
            noted = reader.journal.recall(key)
            if noted is None:
                start = time.perf_counter()
                results, cache = generate(reader, tokenizer, texts, ks, sampling, names=batch, n=ns)
                noted = {
                    "results": [asdict(result) for result in results],
                    "caps": ks or cache.seen.tolist(),
                    "cut": int(cache.cut.sum()),
                    "kv_reserved": cache.kv_bytes_peak,
                    "seconds": time.perf_counter() - start,
                    "tokens": reader.tokens - before,
                }
                reader.journal.note(key, noted)
            reader.tokens = before + noted["tokens"]
            found.add(batch, noted)
            advance(len(batch))
    return found


def _check_lengths(reader: Reader, prompts: Sequence[Sequence[int]], room: int) -> None:
    limit = position_limit(reader.model.config)
    longest = max(len(prompt) for prompt in prompts) + room - 1
    if limit is not None and longest > limit:
        raise UserError(
            f"a prompt and its answer need {longest} positions and the model's table has {limit}: shorten the "
            "prompts, or choose a rotary model."
        )


def _batches(prompts: Sequence[Sequence[int]], room: int, batch_tokens: int) -> Iterator[list[int]]:
    """Indices of prompts of similar length, longest first."""
    batch: list[int] = []
    for i in sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]), i)):
        longest = len(prompts[(batch or [i])[0]])
        if batch and (len(batch) + 1) * (longest + room) > batch_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
