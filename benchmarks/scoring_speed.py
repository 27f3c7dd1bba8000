"""Exact h2o scoring against plain attention and the reference executor, on the body of SmolLM2-135M.

    python benchmarks/scoring_speed.py --lengths 1024 2048 --repeats 5

Ratios are medians over interleaved rounds; the reference executor is run once per length.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial

import torch
from models import console, interleaved, median_ratio, packaged_model
from rich.table import Table

from h2o_lab.attention import EvictionCache, eviction_attention
from h2o_lab.policies import H2O, Budget


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--budget", type=float, default=0.2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--no-reference", action="store_true", help="leave out the slow reference executor")
    args = parser.parse_args()
    model = packaged_model(args.threads).model
    body = model.base_model

    def sdpa(ids: torch.Tensor) -> None:
        body(ids, use_cache=False)

    def h2o(ids: torch.Tensor, executor: str) -> None:
        cache = EvictionCache(
            model.config.num_hidden_layers, H2O(), Budget(fraction=args.budget), executor=executor
        )
        with eviction_attention(model):
            body(ids, cache=cache)

    table = Table(title=f"h2o b = {args.budget} against SDPA, {args.threads} threads, batch 1, float32")
    for column in ("tokens", "SDPA s", "h2o numba s", "numba / SDPA", "reference s", "reference / numba"):
        table.add_column(column, justify="right")
    with torch.inference_mode():
        for length in args.lengths:
            ids = torch.randint(model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
            seconds = interleaved({"sdpa": partial(sdpa, ids), "numba": partial(h2o, ids, "numba")}, args.repeats)
            ours = statistics.median(seconds["numba"])
            slow = []
            if not args.no_reference:
                start = time.perf_counter()
                h2o(ids, "reference")
                slow.append(time.perf_counter() - start)
            table.add_row(
                str(length),
                f"{statistics.median(seconds['sdpa']):.3f}",
                f"{ours:.3f}",
                f"{median_ratio(seconds['numba'], seconds['sdpa']):.2f}",
                f"{slow[0]:.1f}" if slow else "–",
                f"{slow[0] / ours:.1f}" if slow else "–",
            )
    console.print(table)


if __name__ == "__main__":
    main()
