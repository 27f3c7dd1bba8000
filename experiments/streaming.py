"""Perplexity along a book, far beyond the trained context, with a cache of constant size (paper, Figure 5).

    python -m experiments.streaming --books FOLDER/books.jsonl --tokens 20000

Curves: streaming and h2o_streaming with rolling positions, streaming with original positions, and local without
sinks, which collapses when the first tokens leave its window. Each is one pass with the cache carried along.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from experiments.common import model_config, parser, record
from h2o_lab.errors import UserError
from h2o_lab.models import LoadedModel, load_model
from h2o_lab.policies import H2OStreaming, Local, Policy, Streaming
from h2o_lab.progress import progress
from h2o_lab.results import environment, peak_memory_bytes
from h2o_lab.tasks.losses import perplexity, read_chunks
from h2o_lab.tasks.reader import Reader

logger = logging.getLogger("h2o_lab.experiments.streaming")
CURVES: tuple[tuple[Policy, str], ...] = (
    (Streaming(), "rolling"),
    (H2OStreaming(), "rolling"),
    (Streaming(), "original"),
    (Local(), "rolling"),
)


def main(argv: list[str] | None = None) -> None:
    """Measure, record in a folder of its own, and show one table."""
    args = _parser().parse_args(argv)
    record(args, "streaming", lambda: run(args), table)


def run(args: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result record, and one sample per curve and stretch of the text.

    Raises:
        UserError: an argument, the model or the book are wrong.
    """
    if args.every < 1 or args.tokens <= args.every:
        raise UserError(f"--tokens {args.tokens} must be more than --every {args.every}, and that 1 or more.")
    for policy, _ in CURVES:
        policy.check_tokens(args.k)
    loaded = load_model(model_config(args))
    ids, title = read_book(args, loaded)
    samples: list[dict[str, Any]] = []
    start = time.perf_counter()
    for policy, positions in CURVES:
        samples += stream(loaded, policy, positions, ids, args.k, args.every)
    curves: dict[str, list[float]] = {}
    for sample in samples:
        curves.setdefault(f"{sample['policy']}, {sample['positions']}", []).append(sample["perplexity"])
    return {
        "metrics": {"every": args.every, "perplexity": curves},
        "samples": len(samples),
        "k": args.k,
        "data": {"origin": Path(args.books).name, "title": title, "tokens": len(ids)},
        "seconds": {"evaluate": time.perf_counter() - start},
        "peak_memory_bytes": peak_memory_bytes(loaded.device),
        "environment": environment(loaded.device),
    }, samples


def stream(
    loaded: LoadedModel, policy: Policy, positions: str, ids: torch.Tensor, k: int, every: int
) -> list[dict[str, Any]]:
    """One pass over a text (int64 [T]); a record for every stretch of tokens."""
    reader = Reader(loaded.model, policy, positions=positions)
    samples: list[dict[str, Any]] = []
    losses, seconds = torch.zeros(0), 0.0
    name = f"{policy.name}, {positions}"
    with reader.open(), progress(name, len(ids) - 1, "tokens") as advance:
        for part in read_chunks(reader, ids[None], k):
            losses = torch.cat([losses, part.losses[0]])
            seconds += part.seconds
            advance(part.losses.shape[1])
            while len(losses) >= every:
                samples.append(
                    {
                        "policy": policy.name,
                        "positions": positions,
                        "tokens": (len(samples) + 1) * every,
                        "perplexity": perplexity(losses[:every]),
                        "seconds": seconds,
                        "kv_bytes": int(part.cache.kv_bytes_resident.sum()),
                        "kv_bytes_reserved": part.cache.kv_bytes_reserved,
                    }
                )
                losses = losses[every:]
    return samples


def read_book(args: argparse.Namespace, loaded: LoadedModel) -> tuple[torch.Tensor, str]:
    """The opening tokens of a book (int64 [T]), and its title.

    Raises:
        UserError: there is no such file or title, or the book is too short.
    """
    path = Path(args.books)
    if not path.is_file():
        raise UserError(f"--books {path} is not a file: it must hold one book a line, as JSON with title and text.")
    books = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    chosen = [book for book in books if args.title in book["title"]]
    if not chosen:
        raise UserError(f"{path} has no book {args.title}, only {', '.join(book['title'] for book in books)}.")
    ids = loaded.tokenizer(chosen[0]["text"], return_tensors="pt").input_ids[0]
    if len(ids) < args.tokens:
        raise UserError(f"{chosen[0]['title']} has {len(ids)} tokens, and --tokens asks for {args.tokens}.")
    return ids[: args.tokens], chosen[0]["title"]


def table(metrics: dict[str, Any]) -> Table:
    """One column per curve, one row per stretch."""
    drawn = Table(title=f"perplexity of every {metrics['every']} tokens")
    drawn.add_column("up to token", justify="right")
    for name in metrics["perplexity"]:
        drawn.add_column(name, justify="right")
    for row, values in enumerate(zip(*metrics["perplexity"].values(), strict=True)):
        drawn.add_row(str((row + 1) * metrics["every"]), *[f"{value:.1f}" for value in values])
    return drawn


def _parser() -> argparse.ArgumentParser:
    made = parser("streaming", __doc__)
    made.add_argument("--books", required=True, help="JSON lines with title and text")
    made.add_argument("--title", default="", help="part of the title; default: the first book")
    made.add_argument("--tokens", type=int, default=20_000)
    made.add_argument("--every", type=int, default=1000, help="tokens of one point of a curve (default 1000)")
    made.add_argument("--k", type=int, default=256, help="entries that each head keeps (default 256)")
    return made


if __name__ == "__main__":
    main()
