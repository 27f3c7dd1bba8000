"""Exact h2o scoring against plain attention, on the body of SmolLM2-135M.

    python benchmarks/scoring_speed.py --lengths 512 1024 2048 4096 8192 --repeats 5

`h2o` at a share of the text and at a fixed number of entries, and transformers' SDPA without any policy, take
turns; ratios are medians over the rounds. With `--reference` the reference executor runs once per length.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import Any

import torch
from charts import lines, save
from models import console, interleaved, median_ratio, packaged_model, record
from rich.table import Table

from h2o_lab.attention import EvictionCache, eviction_attention
from h2o_lab.models import LoadedModel
from h2o_lab.policies import H2O, Budget


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--budget", type=float, default=0.2)
    parser.add_argument("--budget-tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--reference", action="store_true", help="run the slow reference executor too")
    parser.add_argument("--chart", default="figures/scoring_speed.png")
    parser.add_argument("--results-dir", default="results")
    args = parser.parse_args()
    loaded = packaged_model(args.threads)
    with torch.inference_mode():
        rows = [measure(loaded, length, args) for length in args.lengths]
    show(rows, args)
    series = {"share": f"h2o, budget={args.budget}", "fixed": f"h2o, budget_tokens={args.budget_tokens}"}
    save(lines(rows, "tokens", series, ("tokens", "time / SDPA's time"), at=1), args.chart)
    metrics = {f"{name}_over_sdpa_at_{row['tokens']}": row[name] for row in rows for name in series}
    record(args, "scoring_speed", metrics, rows)


def measure(loaded: LoadedModel, length: int, args: argparse.Namespace) -> dict[str, Any]:
    """Medians of the seconds and of the ratios at one length."""
    model = loaded.model
    ids = torch.randint(model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))

    def h2o(budget: Budget, executor: str = "auto") -> None:
        cache = EvictionCache(model.config.num_hidden_layers, H2O(), budget, executor=executor)
        with eviction_attention(model):
            model.base_model(ids, cache=cache)

    share, fixed = Budget(fraction=args.budget), Budget(tokens=args.budget_tokens)
    seconds = interleaved(
        {
            "sdpa": partial(model.base_model, ids, use_cache=False),
            "share": partial(h2o, share),
            "fixed": partial(h2o, fixed),
        },
        args.repeats,
    )
    row: dict[str, Any] = {"tokens": length}
    row |= {f"{name}_seconds": statistics.median(times) for name, times in seconds.items()}
    row |= {name: median_ratio(seconds[name], seconds["sdpa"]) for name in ("share", "fixed")}
    if args.reference:
        start = time.perf_counter()
        h2o(share, "reference")
        row["reference_seconds"] = time.perf_counter() - start
    return row


def show(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    table = Table(title=f"body of SmolLM2-135M, {args.threads} threads, batch 1, float32")
    names = "SDPA, s", f"h2o b={args.budget}, s", f"h2o k={args.budget_tokens}, s", "b / SDPA", "k / SDPA"
    for column in ("tokens", *names, *(["reference / h2o"] if args.reference else [])):
        table.add_column(column, justify="right")
    for row in rows:
        numbers = [f"{row[f'{name}_seconds']:.2f}" for name in ("sdpa", "share", "fixed")]
        numbers += [f"{row[name]:.2f}" for name in ("share", "fixed")]
        if args.reference:
            numbers.append(f"{row['reference_seconds'] / row['share_seconds']:.1f}")
        table.add_row(str(row["tokens"]), *numbers)
    console.print(table)


if __name__ == "__main__":
    main()
