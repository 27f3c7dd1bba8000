"""What recording attention costs: time beside the same evaluation without it, and memory over many texts.

    python benchmarks/recording.py --lengths 256 1024 4096 --repeats 5

Whole windows are scored, as a perplexity task does. The target is 1.3 times at most at 1,024 tokens; memory is that
of the process, which must not grow from the 20th to the last text.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import Any

import psutil
import torch
from charts import lines, save
from models import console, interleaved, median_ratio, packaged_model, record
from rich.table import Table

from h2o_lab.config import StatsConfig
from h2o_lab.models import LoadedModel
from h2o_lab.policies import H2O, Budget, Full, Policy
from h2o_lab.stats import Recorder, tables
from h2o_lab.tasks.losses import token_losses
from h2o_lab.tasks.reader import Reader

POLICIES = {"full": Full(), "h2o": H2O()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--budget", type=float, default=0.2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--texts", type=int, default=200, help="for the memory, of 128 tokens each")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--chart", default="figures/recording.png")
    parser.add_argument("--results-dir", default="results")
    args = parser.parse_args()
    loaded = packaged_model(args.threads)
    rows = [measure(loaded, length, args) for length in args.lengths]
    table = Table(title=f"time with recording / without, {args.threads} threads, batch 1, float32")
    for column in (
        "tokens",
        *(f"{name}{what}" for name in POLICIES for what in (", s", ", recorded, s", ", ratio")),
    ):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(str(row["tokens"]), *(f"{number:.2f}" for number in list(row.values())[1:]))
    console.print(table)
    save(lines(rows, "tokens", {name: name for name in POLICIES}, ("tokens", "time / without"), at=1), args.chart)
    ratios = {f"{name}_at_{row['tokens']}": row[name] for row in rows for name in POLICIES}
    record(args, "recording", ratios | memory(loaded, args.texts), rows)


def measure(loaded: LoadedModel, length: int, args: argparse.Namespace) -> dict[str, Any]:
    """Medians at one length: seconds without and with recording, and their ratio, of each policy."""
    k = Budget(fraction=args.budget).entries(length, length)
    ids = drawn(loaded, length, 0)
    row: dict[str, Any] = {"tokens": length}
    for name, policy in POLICIES.items():
        recorder = Recorder(StatsConfig(), loaded.tokenizer)
        runs = {
            who: partial(score, loaded, policy, ids, k, it) for who, it in (("without", None), ("with", recorder))
        }
        seconds = interleaved(runs, args.repeats)
        row |= {f"{name}_{who}_seconds": statistics.median(times) for who, times in seconds.items()}
        row[name] = median_ratio(seconds["with"], seconds["without"])
    start = time.perf_counter()
    found = tables(recorder)
    spent = time.perf_counter() - start
    console.print(f"{length} tokens: tables and fits of {len(found['layers'])} layers took {spent:.1f} s")
    return row


def drawn(loaded: LoadedModel, length: int, seed: int) -> torch.Tensor:
    """int64 [1, length], tokens of a seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(loaded.model.config.vocab_size, (1, length), generator=generator)


def score(loaded: LoadedModel, policy: Policy, ids: torch.Tensor, k: int, recorder: Recorder | None) -> None:
    """Losses of a window under a policy, recorded or not."""
    reader = Reader(loaded.model, policy, recorder=recorder)
    with reader.open():
        token_losses(reader, ids, k if policy.budgeted else None, chunk=ids.shape[1])


def memory(loaded: LoadedModel, texts: int) -> dict[str, float]:
    """MiB of the process while one recorder sees many texts, by their number."""
    recorder, found = Recorder(StatsConfig(), loaded.tokenizer), {}
    for number in range(1, texts + 1):
        score(loaded, H2O(), drawn(loaded, 128, number), 25, recorder)
        if number == 20 or number % 60 == 20 or number == texts:
            found[f"mib_after_{number}_texts"] = psutil.Process().memory_info().rss / 2**20
            console.print(f"{number} texts: {found[f'mib_after_{number}_texts']:,.0f} MiB")
    return found


if __name__ == "__main__":
    main()
