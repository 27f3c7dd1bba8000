"""Six tokens that become important only late: which policies still have them at the end?

    python -m experiments.late_tokens --seeds 10

One head, no model: keys, queries and values are constructed. Background tokens have keys of different, steady
weight, so that the heavy ones among them gather attention all the time. Six needles come in at random places. Their
own query gives them almost nothing, nor do the next few; from `--delay` queries after its arrival on, every query
gives a needle a lot of attention, to the end of the text. All needles are older than k tokens by then.

Late means here: after the query of its own arrival, and within the recent window (k/2) of `h2o`. There a needle is
safe while it gathers attention, and it leaves the window as a heavy hitter. In `h2o_official_mask`, the rule of the
published scoring code, a token enters the heavy set at once, with what one query gave it, and goes at the next
step; it is seen as long as the band of the k/2 + 1 newest tokens covers it, and cannot come back. With a delay of
the window or more, `h2o` loses the needles too: it does not know the future.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table

from experiments.common import parser, record
from h2o_lab.attention import EXECUTORS, Caps, LayerState, attend
from h2o_lab.errors import UserError
from h2o_lab.policies import (
    H2O,
    Full,
    GlobalH2,
    GlobalH2Mask,
    H2OMean,
    H2Only,
    H2OOfficialMask,
    H2ORealDrop,
    Local,
    Policy,
    Random,
    SparsePolicy,
    Streaming,
    Tova,
)
from h2o_lab.results import environment, peak_memory_bytes

POLICIES: tuple[Policy, ...] = (
    Full(),
    H2O(),
    H2OOfficialMask(),
    H2ORealDrop(),
    H2Only(),
    H2OMean(),
    GlobalH2(),
    GlobalH2Mask(),
    Local(),
    Streaming(),
    Random(),
    Tova(),
)
NEEDLES = 6
SIZE = 32
"""Numbers in a key: one for the background's weight, one per needle, the rest noise."""
ABSENT, WANTED = -8.0, 5.0
"""Logits of a needle before and after the text turns to it; those of the background are drawn around 0."""
NOISE = 0.5
"""Standard deviation of the noise in every logit."""
MEASURES = {"kept": "needles seen at the end", "attention": "attention on them", "error": "error of the output"}
"""All of the last query; the error is the distance to the output of the full cache, relative to its length."""


@dataclass(frozen=True)
class Text:
    """A constructed text of one head.

    Attributes:
        queries, keys, values: float32 [1, 1, T, SIZE], logits being plain products. The value of needle i is the
            i-th unit vector, and background has 0 there: an output says what attention each needle got.
        needles: int64 [NEEDLES], where they are.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    needles: torch.Tensor

    @classmethod
    def draw(cls, length: int, k: int, delay: int, seed: int) -> Text:
        """Needles lie behind the first k tokens, when every place is taken, and before the last k."""
        g = torch.Generator().manual_seed(seed)
        needles = torch.randperm(length - 2 * k, generator=g)[:NEEDLES].sort().values + k
        each = torch.arange(NEEDLES)
        queries, keys, values = (torch.randn(length, SIZE, generator=g) for _ in range(3))
        queries *= NOISE * (SIZE - NEEDLES - 1) ** -0.5
        values *= SIZE**-0.5
        keys[:, 1 : NEEDLES + 1] = values[:, :NEEDLES] = 0
        keys[needles, 0] = values[needles] = 0
        keys[needles, 1 + each] = values[needles, each] = 1
        queries[:, 0] = 1
        late = torch.arange(length)[:, None] >= needles + delay
        queries[:, 1 : NEEDLES + 1] = late * (WANTED - ABSENT) + ABSENT
        return cls(queries[None, None], keys[None, None], values[None, None], needles)

    def full_attention(self) -> torch.Tensor:
        """float32 [1, 1, T, T], probabilities of the full cache."""
        logits = self.queries @ self.keys.transpose(2, 3)
        return logits.masked_fill(torch.ones_like(logits).triu(1).bool(), -torch.inf).softmax(dim=-1)


def main(argv: list[str] | None = None) -> None:
    """Measure, record in a folder of its own, and show one table."""
    args = _parser().parse_args(argv)
    record(args, "late_tokens", lambda: run(args), table)


def run(args: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result record, and one sample per seed x policy.

    Raises:
        UserError: an argument is out of its range.
    """
    _check(args)
    start = time.perf_counter()
    samples = []
    for seed in range(args.seeds):
        text = Text.draw(args.length, args.budget_tokens, args.delay, seed)
        for policy in POLICIES:
            found = measure(text, policy, args.budget_tokens, seed, args.executor)
            samples.append({"policy": policy.name, "seed": seed} | found)
    return {
        "metrics": {policy.name: _summary(samples, policy.name) for policy in POLICIES},
        "main_metric": "h2o.kept.mean",
        "samples": len(samples),
        "k": dict.fromkeys(("mean", "min", "max"), args.budget_tokens),
        "seconds": {"evaluate": time.perf_counter() - start},
        "peak_memory_bytes": peak_memory_bytes("cpu"),
        "environment": environment("cpu"),
    }, samples


def measure(text: Text, policy: Policy, k: int, seed: int, executor: str = "auto") -> dict[str, float]:
    """What the last query sees: see `MEASURES`.

    Args:
        text: see there.
        policy: what is kept.
        k: the budget, in entries.
        seed: seed of policies that draw.
        executor: see `attend`.
    """
    length = text.keys.shape[2]
    full = text.full_attention()
    static = None
    if policy.two_passes and not isinstance(policy, SparsePolicy):
        static = full.sum(dim=2)
    elif not isinstance(policy, SparsePolicy):
        static = policy.static_priority(torch.arange(length)[None], text.keys, layer=0, seed=seed)
    caps = Caps.of(policy, [k], [length])
    state = LayerState.empty(policy, caps, text.keys, text.values, static=static is not None)
    out = attend(text.queries, text.keys, text.values, state, scale=1.0, static=static, executor=executor)
    last, expected = out[0, 0, -1], full[0, 0, -1] @ text.values[0, 0]
    on_needles = last[:NEEDLES]
    return {
        "kept": int((on_needles > 0).sum()),
        "attention": on_needles.sum().item(),
        "error": ((last - expected).norm() / expected.norm()).item(),
    }


def table(metrics: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Table:
    """One row per policy: mean, and from least to most, over the seeds."""
    drawn = Table(title=f"{NEEDLES} tokens that become important late: mean (min to max) over the seeds")
    drawn.add_column("policy")
    for heading in MEASURES.values():
        drawn.add_column(heading, justify="right")
    for name, found in metrics.items():
        cells = dict.fromkeys(MEASURES, "{mean:.2f} ({min:.2f} to {max:.2f})")
        cells["kept"] = "{mean:.1f} ({min} to {max})"
        drawn.add_row(name, *[cell.format_map(found[measured]) for measured, cell in cells.items()])
    return drawn


def _summary(samples: list[dict[str, Any]], policy: str) -> dict[str, dict[str, float]]:
    summary = {}
    for measured in MEASURES:
        values = [sample[measured] for sample in samples if sample["policy"] == policy]
        summary[measured] = {"mean": sum(values) / len(values), "min": min(values), "max": max(values)}
    return summary


def _check(args: argparse.Namespace) -> None:
    least = 2 * args.budget_tokens + NEEDLES
    checks = {
        "--seeds must be 1 or more": args.seeds >= 1,
        "--budget-tokens must be 2 or more": args.budget_tokens >= 2,
        f"--length must be {least} or more, for needles between the first and the last k": args.length >= least,
        f"--delay must be 0 to {args.budget_tokens}, or the text may end before it": (
            0 <= args.delay <= args.budget_tokens
        ),
    }
    for sentence, holds in checks.items():
        if not holds:
            raise UserError(f"{sentence}.")


def _parser() -> argparse.ArgumentParser:
    made = parser("late_tokens", __doc__, model=False)
    made.add_argument("--seeds", type=int, default=10, help="texts (default 10)")
    made.add_argument("--length", type=int, default=320, help="tokens of each text (default 320)")
    made.add_argument("--budget-tokens", type=int, default=64, help="k (default 64)")
    made.add_argument("--delay", type=int, default=4, help="queries from arrival to importance (default 4)")
    made.add_argument("--executor", choices=EXECUTORS, default="auto")
    return made


if __name__ == "__main__":
    main()
