"""What recording attention costs: time beside the same evaluation without it, and memory over many texts.

    python benchmarks/recording.py --length 1024 --repeats 5

Whole windows are scored, as a perplexity task does. The target is 1.3 times at most at 1,024 tokens; memory is that
of the process, which must not grow from the 20th to the last text.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial

import psutil
import torch
from models import console, interleaved, median_ratio, packaged_model
from rich.table import Table

from h2o_lab.config import StatsConfig
from h2o_lab.models import LoadedModel
from h2o_lab.policies import H2O, Budget, Full, Policy
from h2o_lab.stats import Recorder, tables
from h2o_lab.tasks.losses import token_losses
from h2o_lab.tasks.reader import Reader

TARGET = 1.3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--budget", type=float, default=0.2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--texts", type=int, default=200, help="for the memory, of 128 tokens each")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    loaded = packaged_model(args.threads)
    k = Budget(fraction=args.budget).entries(args.length, args.length)
    ids = drawn(loaded, args.length, 0)
    table = Table(title=f"recording at {args.length} tokens, {args.threads} threads, batch 1, float32")
    table.add_column("policy")
    for column in ("without, s", "with, s", "ratio", f"within {TARGET}"):
        table.add_column(column, justify="right")
    for policy in (Full(), H2O()):
        recorder = Recorder(StatsConfig(), loaded.tokenizer)
        plain, watched = (partial(score, loaded, policy, ids, k, who) for who in (None, recorder))
        seconds = interleaved({"without": plain, "with": watched}, args.repeats)
        ratio = median_ratio(seconds["with"], seconds["without"])
        medians = (f"{statistics.median(seconds[name]):.2f}" for name in ("without", "with"))
        table.add_row(policy.name, *medians, f"{ratio:.2f}", "yes" if ratio <= TARGET else "no")
    console.print(table)
    start = time.perf_counter()
    found = tables(recorder)
    console.print(f"tables and fits of {len(found['layers'])} layers: {time.perf_counter() - start:.1f} s")
    memory(loaded, args.texts)


def drawn(loaded: LoadedModel, length: int, seed: int) -> torch.Tensor:
    """int64 [1, length], tokens of a seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(loaded.model.config.vocab_size, (1, length), generator=generator)


def score(loaded: LoadedModel, policy: Policy, ids: torch.Tensor, k: int, recorder: Recorder | None) -> None:
    """Losses of a window under a policy, recorded or not."""
    reader = Reader(loaded.model, policy, recorder=recorder)
    with reader.open():
        token_losses(reader, ids, k if policy.budgeted else None, chunk=ids.shape[1])


def memory(loaded: LoadedModel, texts: int) -> None:
    """Show the memory of the process while one recorder sees many texts."""
    recorder = Recorder(StatsConfig(), loaded.tokenizer)
    for number in range(1, texts + 1):
        score(loaded, H2O(), drawn(loaded, 128, number), 25, recorder)
        if number == 20 or number % 60 == 20 or number == texts:
            console.print(f"{number} texts: {psutil.Process().memory_info().rss / 2**20:,.0f} MiB")


if __name__ == "__main__":
    main()
