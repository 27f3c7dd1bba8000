"""Perplexity of texts under a policy: in windows of a fixed context, or as streams of any length."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import PreTrainedTokenizerBase

from h2o_lab.attention import EvictionCache
from h2o_lab.attention.checkpoint import can_store, load_cache, save_cache
from h2o_lab.attention.hook import position_limit
from h2o_lab.cells import Journal, fingerprint
from h2o_lab.config import Config, DataConfig, PerplexityConfig
from h2o_lab.data.texts import Text, load_texts
from h2o_lab.errors import UserError
from h2o_lab.policies import Budget, Policy
from h2o_lab.progress import progress
from h2o_lab.results.environment import memory_bytes
from h2o_lab.tasks.evaluation import Evaluation
from h2o_lab.tasks.losses import Chunk, perplexity, read_chunks
from h2o_lab.tasks.reader import Reader

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from h2o_lab.checks import Plan
    from h2o_lab.models import LoadedModel
    from h2o_lab.stats import Recorder

MODES = ("windowed", "streaming")


@dataclass(frozen=True)
class Texts:
    """What is to be read, and where it is from."""

    texts: list[Text]
    origin: str


def check(task: PerplexityConfig, data: DataConfig, policy: Policy, prefill: str = "evict") -> None:
    """Read the texts, where they are ours to read.

    Raises:
        UserError: a setting is out of its range, the policy cannot stream, or the texts cannot be had.
    """
    from h2o_lab.checks import at_least

    if task.mode not in MODES:
        raise UserError(f"task.mode={task.mode} is unknown: it must be one of {', '.join(MODES)}.")
    for key, least in (("tokens", 2), ("window", 2), ("stride", 1), ("chunk", 1), ("every", 1)):
        at_least(f"task.{key}", getattr(task, key), least)
    at_least("task.checkpoint_every", task.checkpoint_every, 1)
    if task.stride is not None and task.stride >= task.window:
        raise UserError(f"task.stride={task.stride} is out of range: it must be below task.window={task.window}.")
    if task.mode == "streaming" and not policy.causal:
        raise UserError(f"policy={policy.name} looks at the whole text: it cannot stream, use task.mode=windowed.")
    if prefill == "full" and policy.evicts and task.mode == "windowed":
        raise UserError(
            "prefill=full reads a window as one prompt, so that nothing would be evicted: use prefill=evict, or "
            "task.mode=streaming, where the first task.chunk tokens are the prompt."
        )
    if task.path is not None or data.source != "hub":
        load(task, data)


def load(task: PerplexityConfig, data: DataConfig) -> Texts:
    """The first `limit` texts, of those that have `title` in theirs.

    Raises:
        UserError: they cannot be had, or none has the title.
    """
    texts, origin = load_texts(task.name, data, task.path)
    if task.title is not None:
        found = [text for text in texts if task.title.casefold() in text.title.casefold()]
        if not found:
            raise UserError(
                f"task.title={task.title} is in no title: there are {'; '.join(text.title for text in texts)}."
            )
        texts = found
    return Texts(texts[: task.limit], origin)


def content(texts: Texts, task: PerplexityConfig) -> Any:
    """Titles and texts."""
    return [asdict(text) for text in texts.texts]


def run(
    texts: Texts,
    cfg: Config,
    plan: Plan,
    loaded: LoadedModel,
    journal: Journal,
    recorder: Recorder | None = None,
) -> Evaluation:
    """Evaluate one cell."""
    reader = Reader.of(cfg, plan, loaded, journal, recorder)
    return evaluate(texts, cast(PerplexityConfig, cfg.task), plan.budget, reader, loaded.tokenizer)


@dataclass
class _Tally:
    """What has been read so far."""

    nats: float = 0.0
    scored: int = 0
    read_before: int = 0
    """Tokens that another process had read, and whose time is in `seconds`."""
    bytes: int = 0
    seconds: float = 0.0
    caps: list[int] = field(default_factory=list)
    cut: int = 0
    kv_resident: list[int] = field(default_factory=list)
    kv_reserved: int = 0
    samples: list[dict[str, Any]] = field(default_factory=list)

    def add(self, part: dict[str, Any]) -> None:
        """Take over a stream or a batch of windows, in the words of the journal."""
        self.nats += part["nats"]
        self.scored += part["scored"]
        self.seconds += part["seconds"]
        self.samples += part["samples"]
        self.caps += part["caps"]
        self.cut += part["cut"]
        self.kv_resident += part["kv_resident"]
        self.kv_reserved = max(self.kv_reserved, part["kv_reserved"])


def _about_cache(cache: EvictionCache, k: int | None) -> dict[str, Any]:
    """What a result says of a cache when its texts have been read."""
    return {
        "caps": [k] * len(cache.seen) if k is not None else cache.seen.tolist(),
        "cut": int(cache.cut.sum()),
        "kv_resident": cache.kv_bytes_resident.tolist(),
        "kv_reserved": cache.kv_bytes_peak,
    }


def evaluate(
    texts: Texts, task: PerplexityConfig, budget: Budget | None, reader: Reader, tokenizer: PreTrainedTokenizerBase
) -> Evaluation:
    """Perplexity per token, and bits per byte, of all texts together; a curve over position for each."""
    tally = _Tally()
    with reader.open():
        for text in texts.texts:
            ids = tokenizer(text.text, return_tensors="pt", add_special_tokens=False).input_ids[0][: task.tokens]
            _check_length(ids, text, task, reader)
            # the first token is given, not scored
            tally.bytes += len(str(tokenizer.decode(ids[1:])).encode())
            with progress(text.title or task.name, len(ids) - 1, "tokens") as advance:
                if task.mode == "streaming":
                    _stream(tally, text, ids, task, budget, reader, advance)
                else:
                    _windows(tally, text, ids, task, budget, reader, advance)
    mean = tally.nats / tally.scored
    return Evaluation(
        metrics={
            "perplexity": math.exp(mean),
            "bits_per_byte": tally.nats / math.log(2) / tally.bytes,
            "nats_per_token": mean,
        },
        samples=tally.samples,
        origin=texts.origin,
        caps=tally.caps,
        cut=tally.cut,
        kv_resident=tally.kv_resident,
        kv_reserved=tally.kv_reserved,
        tokens_computed=tally.read_before + reader.tokens,
        tokens_scored=tally.scored,
        seconds=tally.seconds,
        details={"text": {"titles": [text.title for text in texts.texts], "bytes": tally.bytes, "mode": task.mode}},
    )


def _check_length(ids: torch.Tensor, text: Text, task: PerplexityConfig, reader: Reader) -> None:
    if len(ids) < 2:
        raise UserError(f"text {text.title!r} has {len(ids)} tokens: 2 are needed to predict one.")
    limit = position_limit(reader.model.config)
    longest = len(ids) - 1 if task.mode == "streaming" else min(task.window, len(ids)) - 1
    if limit is not None and longest > limit:
        raise UserError(
            f"text {text.title!r} needs {longest} positions and the model's table has {limit}: use a smaller "
            "task.window or task.tokens, or a rotary model."
        )


@dataclass
class _Course:
    """How far a stream has come; `pending` are the losses of the stretch that is not complete yet."""

    nats: float = 0.0
    scored: int = 0
    seconds: float = 0.0
    samples: list[dict[str, Any]] = field(default_factory=list)
    pending: list[float] = field(default_factory=list)

    def add(self, part: Chunk, text: Text, every: int) -> None:
        self.nats += part.losses.double().sum().item()
        self.scored += part.losses.shape[1]
        self.seconds += part.seconds
        self.pending += part.losses[0].tolist()
        while len(self.pending) >= every:
            stretch, self.pending = self.pending[:every], self.pending[every:]
            self.samples.append(
                {
                    "title": text.title,
                    "tokens": (len(self.samples) + 1) * every,
                    "perplexity": perplexity(torch.tensor(stretch)),
                    "seconds": self.seconds,
                    "kv_bytes": int(part.cache.kv_bytes_resident.sum()),
                    "kv_bytes_reserved": part.cache.kv_bytes_reserved,
                    "process_bytes": memory_bytes(part.cache.states[0].keys.device),
                }
            )


def _stream(tally: _Tally, text: Text, ids, task: PerplexityConfig, budget: Budget | None, reader, advance) -> None:
    """One pass; a sample for every stretch of `every` tokens."""
    k = budget.entries(len(ids), len(ids)) if budget is not None else None
    about = _about_stream(text, ids, k, reader, task)
    key = fingerprint("stream", about)
    noted = reader.journal.recall(key)
    if noted is None:
        noted = _read_stream(tally, text, ids, k, task, reader, advance, about, key)
        reader.journal.note(key, noted)
    else:
        tally.read_before += noted["scored"]
        advance(noted["scored"])
    tally.add(noted)


def _read_stream(
    tally: _Tally, text: Text, ids, k: int | None, task: PerplexityConfig, reader, advance, about: str, key: str
) -> dict[str, Any]:
    """What a stream gives, in the words of the journal; from its checkpoint on, where there is one."""
    # a cache without a cap would be written whole, again and again; one process has not all heads
    storable = reader.policy.evicts and can_store(reader.policy) and reader.share.count == 1
    file = reader.journal.beside(f"{key}.safetensors") if storable else None
    course, cache = _Course(), None
    if file is not None and file.exists():
        try:
            course, cache = _restore(file, reader, k, len(ids), about)
        except UserError as error:
            logger.warning("%s The stream begins anew.", error)
        tally.read_before += course.scored
        advance(course.scored)
    stored = course.scored
    for part in read_chunks(reader, ids[None], k, chunk=task.chunk, cache=cache):
        course.add(part, text, task.every)
        advance(part.losses.shape[1])
        cache = part.cache
        if file is not None and course.scored - stored >= task.checkpoint_every:
            _store(file, course, cache, about)
            stored = course.scored
    assert cache is not None
    return asdict(course) | _about_cache(cache, k)


def _store(file: Path, course: _Course, cache: EvictionCache, about: str) -> None:
    notes = json.dumps(asdict(course)).encode()
    save_cache(cache, file, {"course": torch.frombuffer(bytearray(notes), dtype=torch.uint8)}, about)


def _about_stream(title: Text, ids: torch.Tensor, k: int | None, reader: Reader, task: PerplexityConfig) -> str:
    """What must be the same for a stream to go on, within a cell."""
    text = f"{title.title} {hashlib.sha256(ids.numpy().tobytes()).hexdigest()}"
    model = f"{type(reader.model).__name__} {reader.model.config.name_or_path} {reader.model.dtype}"
    how = f"{reader.prefill} {task.chunk} {reader.positions} {reader.seed} {task.every}"
    return f"{model} | {reader.policy!r} | {k} {how} | {text}"


def _restore(file: Path, reader: Reader, k: int | None, length: int, about: str) -> tuple[_Course, EvictionCache]:
    """An interrupted stream."""
    layers = reader.model.config.get_text_config(decoder=True).num_hidden_layers
    cache = EvictionCache(
        layers,
        reader.policy,
        [k] if k is not None else None,
        prefill=reader.prefill,
        executor=reader.executor,
        seed=reader.seed,
        lengths=[length],
    )
    extra = load_cache(cache, file, about)
    return _Course(**json.loads(bytes(extra["course"].tolist()))), cache


def _windows(
    tally: _Tally, text: Text, ids, task: PerplexityConfig, budget: Budget | None, reader, advance
) -> None:
    """Windows of one length together, `stride` tokens apart; the last may be shorter and is read alone."""
    for starts, length, scored in _batches(len(ids), task):
        batch = torch.stack([ids[start : start + length] for start in starts])
        k = budget.entries(length, length) if budget is not None else None
        before = reader.tokens
        key = fingerprint("windows", text.title, starts, batch.tolist(), k, scored)
        noted = reader.journal.recall(key)
        if noted is None:
            with reader.recording(2 * min(scored) >= length):  # else most of it was recorded before
                chunks = list(read_chunks(reader, batch, k, chunk=length))
            losses = torch.cat([part.losses for part in chunks], dim=1)
            kept = [row[len(row) - count :] for row, count in zip(losses, scored, strict=True)]
            noted = {
                "nats": sum(row.double().sum().item() for row in kept),
                "scored": sum(scored),
                "seconds": sum(part.seconds for part in chunks),
                "tokens": reader.tokens - before,
                "samples": [
                    {"title": text.title, "start": start, "tokens": len(row), "perplexity": perplexity(row), "k": k}
                    for start, row in zip(starts, kept, strict=True)
                ],
            } | _about_cache(chunks[-1].cache, k)
            reader.journal.note(key, noted)
        reader.tokens = before + noted["tokens"]
        tally.add(noted)
        advance(noted["tokens"])


def _batches(length: int, task: PerplexityConfig) -> Iterator[tuple[list[int], int, list[int]]]:
    """(starts of windows, their length, tokens scored in each): every token but the text's first exactly once."""
    window = min(task.window, length)
    stride = task.stride if task.stride is not None else window - 1
    starts, scored, done = [], [], 1
    start = 0
    while start + window <= length:
        end = start + window
        starts.append(start)
        scored.append(end - done)
        done = end
        start += stride
    most = max(1, task.batch_tokens // window)
    for first in range(0, len(starts), most):
        yield starts[first : first + most], window, scored[first : first + most]
    if done < length:
        rest = max(0, length - window)
        yield [rest], length - rest, [length - done]
