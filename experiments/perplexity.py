"""Perplexity of every policy at several budgets, on news (XSum) and on encyclopedia articles (WikiText).

    python -m experiments.perplexity --wikitext FOLDER/wiki.test.raw

Each window is read under eviction from its first token on; counted is its second half. Policies that compress a
prompt read the first half in full and are held to the cap behind it; everything that is compared with them on equal
terms is marked `prefill: full`.
"""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from experiments.common import file_windows, model_config, parser, record, xsum_windows
from h2o_lab.errors import UserError
from h2o_lab.models import LoadedModel, load_model
from h2o_lab.policies import ALL, Budget, Policy
from h2o_lab.results import environment, peak_memory_bytes
from h2o_lab.tasks.losses import perplexity, token_losses
from h2o_lab.tasks.reader import Reader

logger = logging.getLogger("h2o_lab.experiments.perplexity")
BY_NAME = {kind.name: kind for kind in ALL}
AFTER_FULL_PROMPTS = ("full", "h2o", "local", "h2o_real_drop")
"""Run a second time behind a prompt read in full, to compare prompt compression with."""


def main(argv: list[str] | None = None) -> None:
    """Measure, record in a folder of its own, and show one table."""
    args = _parser().parse_args(argv)
    record(args, "perplexity", lambda: run(args), table)


def run(args: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result record, and one sample per text x policy x prefill x budget.

    Raises:
        UserError: an argument, the model or the texts are wrong.
    """
    unknown = [name for name in args.policies if name not in BY_NAME]
    if unknown:
        raise UserError(f"--policies {unknown[0]} is unknown: it must be among {', '.join(BY_NAME)}.")
    budgets = [Budget(fraction=fraction) for fraction in args.budgets]
    start = time.perf_counter()
    loaded = load_model(model_config(args))
    windows, origins = _texts(args, loaded)
    seconds = {"load": time.perf_counter() - start}
    start = time.perf_counter()
    samples = []
    for name in args.policies:
        kind = BY_NAME[name]
        prefills = ["full"] if kind.compresses_prompt else ["evict"]
        if name in AFTER_FULL_PROMPTS:
            prefills.append("full")
        for prefill in prefills:
            for budget in budgets if kind.budgeted else [None]:
                for text, ids in windows.items():
                    samples.append({"text": text} | measure(loaded, kind(), prefill, budget, ids, args.seed))
                    logger.info("%(text)s %(policy)s %(prefill)s b=%(budget)s: %(perplexity).2f", samples[-1])
    seconds["evaluate"] = time.perf_counter() - start
    return {
        "metrics": {_key(sample): sample["perplexity"] for sample in samples},
        "main_metric": _key(samples[0]),
        "samples": len(samples),
        "seed": args.seed,
        "data": origins,
        "seconds": seconds,
        "peak_memory_bytes": peak_memory_bytes(loaded.device),
        "environment": environment(loaded.device),
    }, samples


def measure(
    loaded: LoadedModel, policy: Policy, prefill: str, budget: Budget | None, ids: torch.Tensor, seed: int
) -> dict[str, Any]:
    """Perplexity of the second half of the windows (int64 [B, T]) under one policy."""
    length = ids.shape[1]
    k = budget.entries(length, length) if budget is not None else None
    reader = Reader(loaded.model, policy, prefill, seed=seed)
    start = time.perf_counter()
    with reader.open():
        # the prompt is the first half where it is read in full; elsewhere the chunk changes nothing
        losses = token_losses(reader, ids, k, chunk=length // 2)[:, length // 2 :]
    return {
        "policy": policy.name,
        "prefill": prefill,
        "budget": budget.fraction if budget is not None else None,
        "k": k,
        "perplexity": perplexity(losses),
        "by_window": [perplexity(row) for row in losses],
        "seconds": time.perf_counter() - start,
    }


def _texts(args: argparse.Namespace, loaded: LoadedModel) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    windows: dict[str, torch.Tensor] = {}
    origins: dict[str, Any] = {}
    windows["xsum"], origins["xsum"] = xsum_windows(loaded, args.windows, args.length, args.data_dir, args.split)
    if args.wikitext:
        windows["wikitext"] = file_windows(loaded, args.wikitext, args.windows, args.length)
        origins["wikitext"] = Path(args.wikitext).name
    return windows, origins


def _key(sample: dict[str, Any]) -> str:
    budget = "" if sample["budget"] is None else f"/b={sample['budget']:g}"
    return f"{sample['text']}/{sample['policy']}/prefill={sample['prefill']}{budget}"


def table(metrics: dict[str, float]) -> Table:
    """One row per policy and prefill, one column per text and budget."""
    rows: dict[str, dict[str, float]] = {}
    for key, value in metrics.items():
        text, policy, prefill, *budget = key.split("/")
        name = policy if prefill == "prefill=evict" else f"{policy} (prompt in full)"
        rows.setdefault(name, {})[f"{text} {budget[0] if budget else 'full'}"] = value
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    drawn = Table(title="perplexity of the second half of each window")
    drawn.add_column("policy")
    for column in columns:
        drawn.add_column(column, justify="right")
    for name, row in rows.items():
        drawn.add_row(name, *[f"{row[column]:.1f}" if column in row else "" for column in columns])
    return drawn


def _parser() -> argparse.ArgumentParser:
    made = parser("perplexity", __doc__)
    made.add_argument("--windows", type=int, default=4, help="windows of each text (default 4)")
    made.add_argument("--length", type=int, default=768, help="tokens of each window (default 768)")
    made.add_argument("--policies", nargs="+", default=list(BY_NAME), help="default: all")
    made.add_argument("--budgets", type=float, nargs="+", default=[0.04, 0.1, 0.2, 0.4, 0.6])
    made.add_argument("--data-dir", help="a folder that holds xsum/<split>.jsonl, instead of the packaged rows")
    made.add_argument("--split", default="validation")
    made.add_argument("--wikitext", help="a WikiText file of raw text; without it, XSum alone")
    made.add_argument("--seed", type=int, default=0)
    return made


if __name__ == "__main__":
    main()
