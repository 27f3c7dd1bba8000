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
import logging
import math
import os
import sys
import time
from collections import defaultdict
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from h2o_lab import log
from h2o_lab.config import DataConfig, ModelConfig
from h2o_lab.data import load_rows
from h2o_lab.errors import UserError
from h2o_lab.models import LoadedModel, load_model
from h2o_lab.progress import progress
from h2o_lab.results import environment, open_result, peak_memory_bytes
from h2o_lab.theory.checks import Violations
from h2o_lab.theory.maps import attention_maps
from h2o_lab.theory.measure import Settings, Step, measure_choices, measure_steps
from h2o_lab.theory.objectives import Floats
from h2o_lab.theory.search import MOST_SUBSETS
from h2o_lab.theory.summary import metrics
from h2o_lab.theory.table import theory_table

logger = logging.getLogger("h2o_lab.experiments.theory")


def main(argv: list[str] | None = None) -> None:
    """Measure, record in a folder of its own, and show one table."""
    log.set_up()
    args = _parser().parse_args(argv)
    try:
        settings = _settings(args)
        folder = Path(args.results_dir) / f"{datetime.now():%Y-%m-%d_%H-%M-%S-%f}"
        result = open_result(folder)
        result.write_config(vars(args))
        try:
            record, samples = run(args, settings)
            result.write_samples(samples)
            result.finish(record)
        except (Exception, KeyboardInterrupt) as error:
            result.fail(error, _describe(args))
            raise
    except UserError as error:
        log.complain(str(error))
        sys.exit(2)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    console.print(theory_table(record["metrics"]))
    logger.info("results in %s", os.path.relpath(folder))


def run(args: argparse.Namespace, settings: Settings) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result record, and one sample per window x layer x head x objective x k.

    Raises:
        UserError: the model or the texts cannot be had, or too few texts are long enough.
    """
    torch.set_num_threads(args.threads)
    start = time.perf_counter()
    loaded = load_model(_model(args))
    seconds = {"load_model": time.perf_counter() - start}
    start = time.perf_counter()
    windows, data = read_windows(args, loaded)
    seconds["load_data"] = time.perf_counter() - start
    start = time.perf_counter()
    samples, found, steps = measure(loaded, windows, settings, args.seed)
    seconds["evaluate"] = time.perf_counter() - start
    record = _describe(args) | {
        "metrics": metrics(samples, found, steps),
        "main_metric": "least_greedy_ratio",
        "samples": len(samples),
        "settings": dataclasses.asdict(settings),
        "data": data,
        "seconds": seconds,
        "peak_memory_bytes": peak_memory_bytes(loaded.device),
        "environment": environment(loaded.device),
    }
    return record, samples


def read_windows(args: argparse.Namespace, loaded: LoadedModel) -> tuple[torch.Tensor, dict[str, Any]]:
    """The opening tokens of the first XSum articles that are long enough, int64 [windows, length]; their origin."""
    source = DataConfig(source="folder", dir=args.data_dir) if args.data_dir else DataConfig(source="packaged")
    rows = load_rows("xsum", source)
    if rows is None or args.split not in rows.splits:
        raise UserError(f"there is no split {args.split}: use --split {' or '.join(rows.splits if rows else [])}.")
    texts = (loaded.tokenizer(row["document"]).input_ids for row in rows.splits[args.split])
    found = list(islice((ids[: args.length] for ids in texts if len(ids) >= args.length), args.windows))
    if len(found) < args.windows:
        raise UserError(
            f"only {len(found)} articles have {args.length} tokens or more: "
            f"lower --windows from {args.windows}, or --length."
        )
    return torch.tensor(found), {"source": source.source, "origin": rows.origin, "split": args.split}


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


def _model(args: argparse.Namespace) -> ModelConfig:
    if args.model_path:
        return ModelConfig(name=Path(args.model_path).name, source="local", path=args.model_path)
    return ModelConfig(name="smollm2_135m", source="packaged")


def _describe(args: argparse.Namespace) -> dict[str, Any]:
    return {"model": _model(args).name, "task": "theory", "seed": args.seed, "config": vars(args)}


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
    parser = argparse.ArgumentParser(
        prog="python -m experiments.theory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    standard = Settings()
    parser.add_argument("--windows", type=int, default=8, help="texts (default 8)")
    parser.add_argument("--length", type=int, default=256, help="tokens of each text (default 256)")
    parser.add_argument("--seed", type=int, default=0, help="of the candidates and the random sets (default 0)")
    parser.add_argument("--sizes", type=int, nargs="+", default=standard.sizes, help="k of the brute force")
    parser.add_argument("--heavy", type=int, default=standard.heavy, help="candidates with the most attention")
    parser.add_argument("--spread", type=int, default=standard.spread, help="candidates drawn from the rest")
    parser.add_argument(
        "--cap", type=float, default=standard.cap, help="share of a query's attention that is enough"
    )
    parser.add_argument("--triples", type=int, default=standard.triples, help="random sets per head and objective")
    parser.add_argument("--caches", type=int, nargs="+", default=standard.caches, help="k of the dynamics")
    parser.add_argument("--model-path", help="a folder of save_pretrained, instead of the packaged model")
    parser.add_argument("--data-dir", help="a folder that holds xsum/<split>.jsonl, instead of the packaged rows")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--results-dir", default="results")
    return parser


if __name__ == "__main__":
    main()
