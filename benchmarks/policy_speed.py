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

import torch
from models import console, interleaved, median_ratio, packaged_model
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
    args = parser.parse_args()
    model = packaged_model(args.threads).model
    table = Table(title=f"policies beside h2o, b = {args.budget}, {args.threads} threads, batch 1, float32")
    for column in ("policy", "prefill", "positions"):
        table.add_column(column)
    for column in ("tokens", "seconds", "/ h2o", f"within {TARGET}"):
        table.add_column(column, justify="right")
    table.add_column("exempt, as")
    for case in _cases(args.policies):
        length = args.step_length if case.by_step else args.length
        k = Budget(fraction=args.budget).entries(length, length)
        ids = torch.randint(model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
        pair = {"h2o": Case(H2O()), "case": case}
        runs = {name: partial(read, model, ids, one, k) for name, one in pair.items()}
        seconds = interleaved(runs, args.repeats)
        ratio = median_ratio(seconds["case"], seconds["h2o"])
        table.add_row(
            case.policy.name,
            case.prefill,
            case.positions,
            str(length),
            f"{statistics.median(seconds['case']):.2f}",
            f"{ratio:.2f}",
            "yes" if ratio <= TARGET else "no",
            case.exempt,
        )
    console.print(table)


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
