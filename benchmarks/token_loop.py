"""The compiled scan against a loop over tokens in Python, the way published code computes the H2O mask.

    python benchmarks/token_loop.py --lengths 512 1024 2048

One attention layer of SmolLM2-135M's shape, each query head with keys of its own, random numbers. The loop here is
written anew from the description of that mask: full attention, then for each token the heaviest columns so far. It
computes what `h2o_official_mask` computes, which is checked first; `h2o` itself is the policy of the paper's
Algorithm 1. Ratios are medians over interleaved rounds.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from typing import Any

import numba
import torch
from charts import lines, save
from models import console, interleaved, median_ratio, record
from rich.table import Table

from h2o_lab.attention import attend
from h2o_lab.attention.caps import Caps
from h2o_lab.attention.state import LayerState
from h2o_lab.policies import H2O, H2OOfficialMask, Policy

HEADS, SIZE = 9, 64
TOLERANCE = 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--budget", type=float, default=0.2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--chart", default="figures/token_loop.png")
    parser.add_argument("--results-dir", default="results")
    args = parser.parse_args()
    numba.set_num_threads(args.threads)
    torch.set_num_threads(args.threads)
    table = Table(title=f"one layer, {HEADS} heads, b = {args.budget}, {args.threads} threads, float32")
    for column in ("tokens", "loop, s", "same mask, s", "h2o, s", "loop / same mask", "loop / h2o"):
        table.add_column(column, justify="right")
    rows: list[dict[str, Any]] = []
    for length in args.lengths:
        k = max(2, int(args.budget * length))
        q, keys, values = torch.randn(3, 1, HEADS, length, SIZE, generator=torch.Generator().manual_seed(0))
        candidates = {
            "loop": partial(token_loop, q, keys, values, k // 2, k // 2),
            "mask": partial(scan, H2OOfficialMask(), q, keys, values, k),
            "h2o": partial(scan, H2O(), q, keys, values, k),
        }
        with torch.inference_mode():
            apart = (candidates["loop"]() - candidates["mask"]()).abs().max().item()
            if apart > TOLERANCE:
                raise SystemExit(f"the loop and h2o_official_mask differ by {apart:.1e} at {length} tokens")
            seconds = interleaved(candidates, args.repeats)
        ratios = {f"loop_over_{name}": median_ratio(seconds["loop"], seconds[name]) for name in ("mask", "h2o")}
        medians = {f"{name}_seconds": statistics.median(times) for name, times in seconds.items()}
        rows.append({"tokens": length} | medians | ratios)
        numbers = [f"{number:.3f}" for number in medians.values()] + [f"{ratio:.1f}" for ratio in ratios.values()]
        table.add_row(str(length), *numbers)
    console.print(table)
    series = {"loop_over_h2o": "h2o", "loop_over_mask": "h2o_official_mask"}
    save(lines(rows, "tokens", series, ("tokens", "times faster than the loop"), at=1), args.chart)
    record(args, "token_loop", {f"{name}_at_{row['tokens']}": row[name] for row in rows for name in series}, rows)


def token_loop(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heavy: int, recent: int) -> torch.Tensor:
    """Attention [B, H, T, D] under the mask: for each token the `heavy` columns and the last `recent` + 1."""
    length = q.shape[2]
    place = torch.arange(length)
    causal = place <= place[:, None]
    logits = (q @ k.transpose(2, 3) * SIZE**-0.5).masked_fill(~causal, -torch.inf)
    p = logits.softmax(dim=-1)
    scores = p[:, :, :heavy].sum(dim=2)
    seen = causal & (place > place[:, None] - recent - 1) | (causal & (place[:, None] < heavy))
    seen = seen.expand(*p.shape).clone()
    for token in range(heavy, length):
        held = torch.zeros_like(scores, dtype=torch.bool)
        held.scatter_(-1, scores.topk(heavy - 1, dim=-1).indices, True)
        held[..., token] = True
        seen[:, :, token] |= held
        scores = (scores + p[:, :, token]) * held
    return logits.masked_fill(~seen, -torch.inf).softmax(dim=-1) @ v


def scan(policy: Policy, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, entries: int) -> torch.Tensor:
    """The same through the compiled executor."""
    state = LayerState.empty(policy, Caps.of(policy, [entries]), k, v)
    return attend(q, k, v, state, scale=SIZE**-0.5)


if __name__ == "__main__":
    main()
