"""Tokens per second while decoding: the bounded cache beside transformers' full one, on SmolLM2-135M.

    python benchmarks/decoding.py --context 4096 --batches 1 4 16

Three caches take turns, a few tokens each: h2o at a fifth of the context, transformers' DynamicCache (with SDPA)
that holds the whole context, and one that holds as many entries as h2o, which shows what the policy itself costs.
Keys and values are random: their numbers do not matter for the time. The result is recorded in a folder that
`h2o_lab.results.load` reads.

With `--flat N` the time of N tokens in succession is measured instead, in ten parts: it must not grow.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from charts import lines, save
from models import console, interleaved, median_ratio, packaged_model, record
from rich.table import Table
from transformers import DynamicCache, PreTrainedModel

from h2o_lab.attention import EvictionCache, eviction_attention
from h2o_lab.attention.caps import Caps
from h2o_lab.attention.state import LayerState
from h2o_lab.policies import H2O, Budget

STEPS = 4
"""Tokens of one turn."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--budget", type=float, default=0.2)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--flat", type=int, metavar="N", help="time N tokens in succession, batch 1")
    parser.add_argument("--chart", default="figures/decoding.png")
    parser.add_argument("--results-dir", default="results")
    args = parser.parse_args()
    model = packaged_model(args.threads).model
    k = Budget(fraction=args.budget).entries(args.context, args.context)
    if args.flat:
        rows = flat(model, k, args.context, args.flat)
        series = {"ms": f"h2o, {k} entries"}
        save(lines(rows, "tokens", series, ("tokens generated", "ms per token"), at=rows[0]["ms"]), args.chart)
        record(args, "decoding_flat", {"last_over_first": rows[-1]["ms"] / rows[0]["ms"]}, rows)
        return
    table = Table(title=f"decoding at context {args.context}, k = {k}, {args.threads} threads, float32")
    for column in ("batch", "h2o, tok/s", "full, tok/s", f"full of {k}, tok/s", "h2o / full", f"h2o / full of {k}"):
        table.add_column(column, justify="right")
    rows = []
    for batch in args.batches:
        rows.append(measure(model, batch, args.context, k, args.repeats))
        table.add_row(str(batch), *(f"{rows[-1][name]:.2f}" for name in list(rows[-1])[1:]))
    console.print(table)
    series = {"h2o": f"h2o, {k} entries", "full": f"full, {args.context} entries", "same": f"full, {k} entries"}
    save(lines(rows, "batch", series, ("sequences", "tokens per second")), args.chart)
    metrics = {f"{name}_at_batch_{row['batch']}": row[name] for row in rows for name in ("over_full", "over_same")}
    record(args, "decoding", metrics, rows)


def measure(model: PreTrainedModel, batch: int, context: int, k: int, repeats: int) -> dict[str, Any]:
    """Tokens per second of the three caches, and the medians of the ratios."""
    size = model.config.num_hidden_layers, batch, model.config.num_key_value_heads
    caches = {"h2o": bounded(model, batch, context, k), "full": whole(size, context), "same": whole(size, k)}
    runs = {name: decoder(model, cache, batch, context) for name, cache in caches.items()}
    seconds = interleaved(runs, repeats)
    speeds = {name: batch * STEPS / statistics.median(times) for name, times in seconds.items()}
    return (
        {"batch": batch}
        | speeds
        | {
            "over_full": median_ratio(seconds["full"], seconds["h2o"]),
            "over_same": median_ratio(seconds["same"], seconds["h2o"]),
        }
    )


def bounded(model: PreTrainedModel, batch: int, context: int, k: int) -> EvictionCache:
    """A cache of h2o that has seen the context and is full, of random numbers."""
    cache = EvictionCache(model.config.num_hidden_layers, H2O(), k)
    heads, size = model.config.num_key_value_heads, model.config.head_dim
    for layer in cache.evicting:
        entry = torch.empty(batch, heads, 1, size)
        state = LayerState.empty(H2O(), Caps.of(H2O(), [k] * batch), entry, entry, capacity=k)
        state.keys.normal_()
        state.values.normal_()
        state.scores.uniform_()
        state.positions[:] = torch.arange(context - k, context, dtype=torch.int32)
        state.seen = torch.full((batch,), context)
        layer.state, layer.length, layer.is_initialized = state, context, True
    return cache


def whole(size: tuple[int, int, int], context: int) -> DynamicCache:
    """Transformers' cache, holding so many random entries."""
    layers, batch, heads = size
    cache = DynamicCache()
    for layer in range(layers):
        cache.update(torch.randn(batch, heads, context, 64), torch.randn(batch, heads, context, 64), layer)
    return cache


def decoder(
    model: PreTrainedModel, cache: EvictionCache | DynamicCache, batch: int, context: int
) -> Callable[[], None]:
    """A function that decodes `STEPS` tokens, each time behind those before."""
    token = torch.zeros(batch, 1, dtype=torch.int64)
    place = torch.full((batch, 1), context)

    def steps() -> None:
        nonlocal place
        for _ in range(STEPS):
            model(token, cache=cache, position_ids=place, logits_to_keep=1)
            place = place + 1

    def run() -> None:
        with torch.inference_mode():
            if isinstance(cache, EvictionCache):
                with eviction_attention(model):
                    steps()
            else:
                steps()

    return run


def flat(model: PreTrainedModel, k: int, context: int, tokens: int) -> list[dict[str, Any]]:
    """Milliseconds per token in each tenth of a generation."""
    run, rows = decoder(model, bounded(model, 1, context, k), 1, context), []
    run()
    turns = tokens // 10 // STEPS
    for part in range(1, 11):
        start = time.perf_counter()
        for _ in range(turns):
            run()
        rows.append({"tokens": part * turns * STEPS, "ms": 1000 * (time.perf_counter() - start) / (turns * STEPS)})
        console.print(f"up to token {rows[-1]['tokens']:6}: {rows[-1]['ms']:.1f} ms per token")
    return rows


if __name__ == "__main__":
    main()
