"""How fast each causal policy runs beside h2o, on the body of SmolLM2-135M.

    python benchmarks/policy_speed.py --length 1024 --repeats 5

Each policy is run in turn with h2o on the same tokens; the ratio is the median over these pairs. The target is 1.3
times h2o at most, except where the definition of a policy forbids it (see the last column). Policies whose layers
wait for each other are run on a shorter text, and so is h2o in the same calls, to compare them with.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from charts import dots, save
from models import console, interleaved, median_ratio, packaged_model, record
from rich.table import Table
from transformers import PreTrainedModel

from h2o_lab.attention import EvictionCache, eviction_attention
from h2o_lab.attention.feeding import calls
from h2o_lab.policies import ALL, H2O, Budget, H2OStreaming, Policy, SparsePolicy, SpAtten, Streaming

TARGET = 1.3
CAUSAL = {kind.name: kind for kind in ALL if kind.causal}
ROLLING = (Streaming.name, H2OStreaming.name)


@dataclass(frozen=True)
class Case:
    """One way to read a text.

    Attributes:
        policy: what is kept.
        prefill, positions: see `EvictionCache` and `eviction_attention`.
        by_step: whether tokens come one at a time once the cap is reached.
    """

    policy: Policy
    prefill: str = "evict"
    positions: str = "original"
    by_step: bool = False

    @property
    def exempt(self) -> str:
        """Why the definition forbids the speed of h2o; empty where it does not."""
        if self.by_step:
            return "single tokens"
        if isinstance(self.policy, SparsePolicy):
            return "mask of all tokens"
        if self.prefill == "full" or not self.policy.evicts:
            return "attends in full"
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--step-length", type=int, default=256, help="of texts read one token at a time")
    parser.add_argument("--budget", type=float, default=0.2)
    parser.add_argument("--policies", nargs="+", choices=list(CAUSAL), default=list(CAUSAL))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--chart", default="figures/policy_speed.png")
    parser.add_argument("--results-dir", default="results")
    args = parser.parse_args()
    model = packaged_model(args.threads).model
    rows = [measure(model, case, args) for case in _cases(args.policies)]
    table = Table(title=f"policies beside h2o, b = {args.budget}, {args.threads} threads, batch 1, float32")
    for column in ("policy", "prefill", "positions"):
        table.add_column(column)
    for column in ("tokens", "seconds", "/ h2o", f"within {TARGET}"):
        table.add_column(column, justify="right")
    table.add_column("exempt, as")
    for row in rows:
        about = (str(row[name]) for name in ("policy", "prefill", "positions", "tokens"))
        within = "yes" if row["over_h2o"] <= TARGET else "no"
        table.add_row(*about, f"{row['seconds']:.2f}", f"{row['over_h2o']:.2f}", within, row["exempt"])
    console.print(table)
    names = [label(row) for row in rows]
    ratios = [row["over_h2o"] for row in rows]
    save(dots(names, ratios, "time / h2o's time", at=1), args.chart)
    record(args, "policy_speed", dict(zip(names, ratios, strict=True)), rows)


def measure(model: PreTrainedModel, case: Case, args: argparse.Namespace) -> dict[str, Any]:
    """Medians of the seconds of one case and of its ratio to h2o."""
    length = args.step_length if case.by_step else args.length
    k = Budget(fraction=args.budget).entries(length, length)
    ids = torch.randint(model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
    pair = {"h2o": Case(H2O()), "case": case}
    seconds = interleaved({name: partial(read, model, ids, one, k) for name, one in pair.items()}, args.repeats)
    return {
        "policy": case.policy.name,
        "prefill": case.prefill,
        "positions": case.positions,
        "tokens": length,
        "seconds": statistics.median(seconds["case"]),
        "over_h2o": median_ratio(seconds["case"], seconds["h2o"]),
        "exempt": case.exempt,
    }


def label(row: dict[str, Any]) -> str:
    """A case in a word or two, with what it does not share with h2o."""
    unlike = {"prefill": "evict", "positions": "original"}
    special = [f"{name}={row[name]}" for name, usual in unlike.items() if row[name] != usual]
    special += ["in single tokens"] if row["exempt"] == "single tokens" else []
    return ", ".join([row["policy"], *special])


def read(model: PreTrainedModel, ids: torch.Tensor, case: Case, k: int) -> None:
    """Run the body of the model over a text, int64 [1, T], under a budget of k entries."""

    def cache(policy: Policy) -> EvictionCache:
        return EvictionCache(model.config.num_hidden_layers, policy, k, prefill=case.prefill)

    mine = cache(case.policy)
    timetable = mine if case.policy.by_step or not case.by_step else cache(SpAtten())
    with torch.inference_mode(), eviction_attention(model, case.positions):
        for columns in calls(timetable, torch.ones_like(ids, dtype=torch.bool)):
            model.base_model(ids[:, columns], cache=mine)


def _cases(names: list[str]) -> Iterator[Case]:
    for name in names:
        policy = CAUSAL[name]()
        yield Case(policy, "full" if policy.compresses_prompt else "evict", by_step=policy.by_step)
        if name in ROLLING:
            yield Case(policy, positions="rolling")
        if name == H2O.name:
            yield Case(policy, prefill="full")
            yield Case(policy, by_step=True)


if __name__ == "__main__":
    main()
