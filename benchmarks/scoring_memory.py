"""Peak memory of scoring a text: h2o beside SDPA and eager attention, on the body of SmolLM2-135M.

    python benchmarks/scoring_memory.py --lengths 2048 4096 8192 16384

Each reads a text in a process of its own, which tells how far its resident memory rose above that of the loaded
model (what loading needed itself hides less than that). Eager attention forms T x T maps: above `--longest-eager`
it is left out. Linux and macOS.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from typing import Any

import psutil
import torch
from charts import lines, save
from models import console, packaged_model, record
from rich.table import Table

from h2o_lab.attention import EvictionCache, eviction_attention
from h2o_lab.policies import H2O, Budget

READERS = {
    "eager": "eager attention",
    "sdpa": "SDPA",
    "share": "h2o, budget=0.2",
    "fixed": "h2o, budget_tokens=256",
}
BUDGETS = {"share": Budget(fraction=0.2), "fixed": Budget(tokens=256)}
MIB = 2**20
WARM_UP = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 4096, 8192, 16384])
    parser.add_argument("--longest-eager", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--chart", default="figures/scoring_memory.png")
    parser.add_argument("--results-dir", default="results")
    parser.add_argument("--alone", choices=READERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        sys.stdout.write(json.dumps(peak(args.alone, args.lengths[0], args.threads)))
        return
    rows = [measure(length, args) for length in args.lengths]
    table = Table(title="peak memory beyond the model, MiB")
    for column in ("tokens", *READERS.values()):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(str(row["tokens"]), *(f"{row[name]:,.0f}" if row[name] else "–" for name in READERS))
    console.print(table)
    save(lines(rows, "tokens", READERS, ("tokens", "peak beyond the model, MiB")), args.chart)
    metrics = {f"{name}_mib_at_{row['tokens']}": row[name] for row in rows for name in READERS if row[name]}
    record(args, "scoring_memory", metrics, rows)


def measure(length: int, args: argparse.Namespace) -> dict[str, Any]:
    """MiB of each reader at one length, None where it is left out."""
    row: dict[str, Any] = {"tokens": length}
    for name in READERS:
        if name == "eager" and length > args.longest_eager:
            row[name] = None
            continue
        command = [
            sys.executable,
            __file__,
            "--alone",
            name,
            "--lengths",
            str(length),
            "--threads",
            str(args.threads),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        row[name] = json.loads(done.stdout)
    return row


def peak(name: str, length: int, threads: int) -> float:
    """MiB that reading takes at most, beyond the process with a model that has read a few tokens."""
    model = packaged_model(threads).model
    if name == "eager":
        model.set_attn_implementation("eager")

    def read(tokens: int) -> None:
        ids = torch.zeros(1, tokens, dtype=torch.int64)
        if name not in BUDGETS:
            model.base_model(ids, use_cache=False)
            return
        with eviction_attention(model):
            model.base_model(ids, cache=EvictionCache(model.config.num_hidden_layers, H2O(), BUDGETS[name]))

    with torch.inference_mode():
        read(WARM_UP)
        before = psutil.Process().memory_info().rss
        read(length)
    unit = 1 if sys.platform == "darwin" else 1024
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before) / MIB


if __name__ == "__main__":
    main()
