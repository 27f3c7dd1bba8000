"""Does the paper's theory (section 4, Appendix D) hold on the attention of a real model over real text?

    python -m experiments.theory --windows 8 --length 256

In each layer and head of each window, 16 tokens (the 8 with the most attention, 8 drawn from the rest) are the
ground set: all their k-subsets are valued, and greedy, one-out-one-in (the paper's dynamic), the k heaviest tokens
and a random subset are compared with the best one, for three objectives. Monotonicity and submodularity are checked
on random sets, and the change of the objective from step to step is measured on all tokens. `h2o_lab.theory` says
what exactly is measured, and where the paper's statements are loose.

The cap of the coverage objective is 0.5 by default: a query that keeps half of its attention is served. At 1 the
objective would be modular; near 0 one attention sink would serve every query.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
from collections import defaultdict
from typing import Any

import numpy as np
import torch

from experiments.common import model_config, parser, record, xsum_windows
from h2o_lab.errors import UserError
from h2o_lab.models import LoadedModel, load_model
from h2o_lab.progress import progress
from h2o_lab.results import environment, peak_memory_bytes
from h2o_lab.theory.checks import Violations
from h2o_lab.theory.maps import attention_maps
from h2o_lab.theory.measure import Settings, Step, measure_choices, measure_steps
from h2o_lab.theory.objectives import Floats
from h2o_lab.theory.search import MOST_SUBSETS
from h2o_lab.theory.summary import metrics
from h2o_lab.theory.table import theory_table


def main(argv: list[str] | None = None) -> None:
    """Measure, record in a folder of its own, and show one table."""
    args = _parser().parse_args(argv)
    record(args, "theory", lambda: run(args, _settings(args)), theory_table)


def run(args: argparse.Namespace, settings: Settings) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result record, and one sample per window x layer x head x objective x k.

    Raises:
        UserError: the model or the texts cannot be had, or too few texts are long enough.
    """
    start = time.perf_counter()
    loaded = load_model(model_config(args))
    seconds = {"load_model": time.perf_counter() - start}
    start = time.perf_counter()
    windows, data = xsum_windows(loaded, args.windows, args.length, args.data_dir, args.split)
    seconds["load_data"] = time.perf_counter() - start
    start = time.perf_counter()
    samples, found, steps = measure(loaded, windows, settings, args.seed)
    seconds["evaluate"] = time.perf_counter() - start
    return {
        "metrics": metrics(samples, found, steps),
        "main_metric": "least_greedy_ratio",
        "samples": len(samples),
        "seed": args.seed,
        "settings": dataclasses.asdict(settings),
        "data": data,
        "seconds": seconds,
        "peak_memory_bytes": peak_memory_bytes(loaded.device),
        "environment": environment(loaded.device),
    }, samples


def measure(
    loaded: LoadedModel, windows: torch.Tensor, settings: Settings, seed: int
) -> tuple[list[dict[str, Any]], dict[str, Violations], dict[Step, Floats]]:
    """Samples; violations by objective; each step quantity as float64 [layers, windows, heads, steps]."""
    samples: list[dict[str, Any]] = []
    found: dict[str, Violations] = defaultdict(lambda: Violations(0, 0, 0))
    steps: dict[Step, list[list[Floats]]] = defaultdict(list)
    layers = loaded.model.config.num_hidden_layers
    with progress("attention sets", len(windows) * layers, "layers") as advance:
        for window, ids in enumerate(windows):
            in_layers: dict[Step, list[Floats]] = defaultdict(list)
            for layer, attention in enumerate(attention_maps(loaded.model, ids)):
                exact = attention.astype(np.float64)
                for head, of_head in enumerate(exact):
                    rng = np.random.default_rng((seed, window, layer, head))
                    choices = measure_choices(of_head, settings, rng)
                    where = {"window": window, "layer": layer, "head": head}
                    samples += [where | sample for sample in choices.samples]
                    for name, more in choices.found.items():
                        found[name] = Violations(*(a + b for a, b in zip(found[name], more, strict=True)))
                for step, values in measure_steps(exact, settings).items():
                    in_layers[step].append(values)
                advance(1)
            for step, per_window in in_layers.items():
                steps[step].append(per_window)
    return samples, dict(found), {step: np.stack(values, axis=1) for step, values in steps.items()}


def _settings(args: argparse.Namespace) -> Settings:
    """The settings that the arguments ask for.

    Raises:
        UserError: one of them is out of its range.
    """
    tokens = args.heavy + args.spread
    sizes, caches = sorted(args.sizes), sorted(args.caches)
    checks = {
        "--windows, --triples and --threads must be 1 or more": min(args.windows, args.triples, args.threads) >= 1,
        "--heavy and --spread must be 0 or more, 1 together": min(args.heavy, args.spread) >= 0 < tokens,
        f"--length must be {tokens} or more, the number of candidates": args.length >= tokens,
        f"--sizes must be 1 to {tokens}, the number of candidates": sizes[0] >= 1 and sizes[-1] <= tokens,
        f"--caches must be 2 to {args.length - 1}, below the length": caches[0] >= 2 and caches[-1] < args.length,
        "--cap must be above 0 and at most 1": 0 < args.cap <= 1,
        "--seed must be 0 or more": args.seed >= 0,
    }
    for sentence, holds in checks.items():
        if not holds:
            raise UserError(f"{sentence}.")
    if max(math.comb(tokens, k) for k in args.sizes) > MOST_SUBSETS:
        raise UserError(
            f"--sizes of {tokens} candidates give more than {MOST_SUBSETS} subsets: use fewer candidates."
        )
    names = ("heavy", "spread", "cap", "triples")
    return Settings(
        sizes=tuple(args.sizes), caches=tuple(args.caches), **{name: getattr(args, name) for name in names}
    )


def _parser() -> argparse.ArgumentParser:
    made = parser("theory", __doc__)
    standard = Settings()
    made.add_argument("--windows", type=int, default=8, help="texts (default 8)")
    made.add_argument("--length", type=int, default=256, help="tokens of each text (default 256)")
    made.add_argument("--seed", type=int, default=0, help="of the candidates and the random sets (default 0)")
    made.add_argument("--sizes", type=int, nargs="+", default=standard.sizes, help="k of the brute force")
    made.add_argument("--heavy", type=int, default=standard.heavy, help="candidates with the most attention")
    made.add_argument("--spread", type=int, default=standard.spread, help="candidates drawn from the rest")
    made.add_argument("--cap", type=float, default=standard.cap, help="share of a query's attention that is enough")
    made.add_argument("--triples", type=int, default=standard.triples, help="random sets per head and objective")
    made.add_argument("--caches", type=int, nargs="+", default=standard.caches, help="k of the dynamics")
    made.add_argument("--data-dir", help="a folder that holds xsum/<split>.jsonl, instead of the packaged rows")
    made.add_argument("--split", default="validation")
    return made


if __name__ == "__main__":
    main()
