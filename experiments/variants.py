"""The readings of H2O side by side on one input: what each costs, and how far it sees what `h2o` sees.

    python -m experiments.variants
    python -m experiments.variants --model-path FOLDER --text-file wiki.test.raw

Every policy reads the windows from their first token on (prefill=evict; `h2o_real_drop` too, though it is meant for
a prompt in full, so that all follow one protocol). Counted is the perplexity of the second half of each window.

Overlap: let B be the tokens that a query sees under `h2o`, and A those that it sees under the policy, itself in
both. The overlap is |A and B| / |B|, averaged over the queries at positions k and later, KV heads, layers and
windows. The newest tokens are in both under most policies, so `older` says the same of the tokens behind h2o's
recent window alone. Each policy is on its own run: hidden states differ, and with them the sets. In `layer_0` all
runs have the same input, and the rule alone makes the difference. A policy that sees more than k can overlap in
full (`full` does), so `seen`, the mean |A|, stands beside it.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import time
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from experiments.common import file_windows, model_config, parser, record, xsum_windows
from h2o_lab.attention import LayerState
from h2o_lab.errors import UserError
from h2o_lab.models import LoadedModel, load_model
from h2o_lab.policies import ALL, Budget, Policy, SparsePolicy
from h2o_lab.policies.sparse import Glance
from h2o_lab.results import environment, peak_memory_bytes
from h2o_lab.results.store import to_json, write_atomic
from h2o_lab.tasks.losses import perplexity, read_chunks
from h2o_lab.tasks.reader import Reader

logger = logging.getLogger("h2o_lab.experiments.variants")
BASE = "h2o"
NAMES = (
    "full",
    BASE,
    "h2o_mean",
    "h2_only",
    "h2o_streaming",
    "h2o_real_drop",
    "h2o_official_mask",
    "global_h2",
    "global_h2_mask",
    "spatten",
    "tova",
    "random",
    "local",
)
PACKAGES = ("h2o_lab", "torch", "transformers", "numba")
MEASURES = ("perplexity", "seen", "overlap", "older", "layer_0")


def main(argv: list[str] | None = None) -> None:
    """Measure, record in a folder of its own, show one table, and write it where `--write` says."""
    args = _parser().parse_args(argv)
    found = record(args, "variants", lambda: run(args), table)
    if args.write:
        write(Path(args.write), found)


def run(args: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result record, and one sample per policy and window.

    Raises:
        UserError: an argument, the model or the texts are wrong.
    """
    k = Budget(fraction=args.budget).entries(args.length, args.length)
    if args.windows < 1 or args.length < k + 2:
        raise UserError(
            f"--windows must be 1 or more, and --length {k + 2} or more, so that h2o with k={k} evicts something."
        )
    if args.write and not Path(args.write).parent.is_dir():
        raise UserError(f"--write {args.write}: there is no such folder.")
    start = time.perf_counter()
    loaded = load_model(model_config(args))
    if args.text_file:
        windows, data = file_windows(loaded, args.text_file, args.windows, args.length), {}
        data["origin"] = Path(args.text_file).name
    else:
        windows, data = xsum_windows(loaded, args.windows, args.length, args.data_dir, args.split)
    seconds = {"load": time.perf_counter() - start}
    start = time.perf_counter()
    samples = measure(loaded, windows, k, args.seed)
    seconds["evaluate"] = time.perf_counter() - start
    return {
        "metrics": summary(samples),
        "main_metric": f"{BASE}/perplexity",
        "samples": len(samples),
        "k": k,
        "seed": args.seed,
        "data": data,
        "seconds": seconds,
        "peak_memory_bytes": peak_memory_bytes(loaded.device),
        "environment": environment(loaded.device),
    }, samples


def measure(loaded: LoadedModel, windows: torch.Tensor, k: int, seed: int) -> list[dict[str, Any]]:
    """One sample per policy and window (int64 [B, T]): loss and perplexity of its second half, and overlaps."""
    kinds = {kind.name: kind for kind in ALL}
    _, base = _read(loaded, kinds[BASE](), windows, k, seed)
    samples = []
    for name in NAMES:
        start = time.perf_counter()
        losses, states = _read(loaded, kinds[name](), windows, k, seed)
        losses = losses[:, windows.shape[1] // 2 :]
        seconds = time.perf_counter() - start
        layers = [overlaps(state, reference, k) for state, reference in zip(states, base, strict=True)]
        for row, of_window in enumerate(losses):
            by_layer = {key: [layer[key][row].item() for layer in layers] for key in layers[0]}
            samples.append(
                {
                    "variant": name,
                    "window": row,
                    "loss": of_window.double().mean().item(),
                    "perplexity": perplexity(of_window),
                    **{key: sum(values) / len(values) for key, values in by_layer.items()},
                    "layer_0": by_layer["overlap"][0],
                    "overlap_by_layer": by_layer["overlap"],
                    "seconds_of_batch": seconds,
                }
            )
        logger.info("%s: perplexity %.2f, %.1f s", name, perplexity(losses), seconds)
    return samples


def _read(
    loaded: LoadedModel, policy: Policy, windows: torch.Tensor, k: int, seed: int
) -> tuple[torch.Tensor, list[LayerState]]:
    """Losses float32 [B, T - 1], and the layers' states, which tell what was evicted when."""
    reader = Reader(loaded.model, policy, seed=seed)
    with reader.open():
        (whole,) = read_chunks(reader, windows, k if policy.budgeted else None, chunk=windows.shape[1], record=True)
    return whole.losses, whole.cache.states


def seen_by(state: LayerState, queries: torch.Tensor) -> torch.Tensor:
    """bool [B, H, n, T], what the queries at these positions (int64 [B, n]) attended to.

    Args:
        state: recorded; where its policy only masks, one whose choice does not depend on the logits.
    """
    held = state.visible_at(queries)
    if not isinstance(state.policy, SparsePolicy):
        return held
    glance = Glance(
        torch.zeros(held.shape, device=held.device).masked_fill(~held, -torch.inf)[:, :, None],
        queries,
        torch.arange(held.shape[-1], device=held.device),
        state.caps.budget,
        state.caps.recent,
        state.companion.visible_at(queries) if state.companion is not None else None,
        state.columns,
    )
    return held & state.policy.visible(glance)[:, :, 0]


def overlaps(state: LayerState, base: LayerState, k: int) -> dict[str, torch.Tensor]:
    """Means over the KV heads and the queries at positions k and later, float64 [B]: `seen`, `overlap`, `older`.

    Args:
        state: of the policy.
        base: of the one it is compared with, on the same texts; it evicts, and protects fewer than k recents.
    """
    length = int(base.seen[0])
    queries = torch.arange(k, length, device=base.positions.device).expand(len(base.seen), -1)
    mine, theirs = seen_by(state, queries), seen_by(base, queries)
    floor = queries - base.caps.recent[:, None].to(queries.device)
    older = torch.arange(length, device=queries.device) <= floor[..., None]
    behind = theirs & older[:, None]
    counts = {"seen": mine.sum(dim=-1).double()}
    for key, wanted in (("overlap", theirs), ("older", behind)):
        counts[key] = (mine & wanted).sum(dim=-1) / wanted.sum(dim=-1).double()
    return {key: value.mean(dim=(1, 2)) for key, value in counts.items()}


def summary(samples: list[dict[str, Any]]) -> dict[str, float]:
    """`policy/measure`: means over windows; perplexity is of all their tokens."""
    metrics = {}
    for name in NAMES:
        mine = [sample for sample in samples if sample["variant"] == name]
        for key in MEASURES:
            values = [sample["loss" if key == "perplexity" else key] for sample in mine]
            mean = sum(values) / len(values)
            metrics[f"{name}/{key}"] = math.exp(mean) if key == "perplexity" else mean
    return metrics


def table(metrics: dict[str, float]) -> Table:
    """One row per policy."""
    drawn = Table(title="variants of H2O: perplexity, entries seen, and overlap with what h2o sees")
    drawn.add_column("policy")
    for key in MEASURES:
        drawn.add_column(key, justify="right")
    for name in NAMES:
        numbers = [f"{metrics[f'{name}/{key}']:.{1 if key == 'seen' else 3}f}" for key in MEASURES]
        drawn.add_row(name, *numbers)
    return drawn


def write(path: Path, found: dict[str, Any]) -> None:
    """Put a record's numbers into a JSON of one entry per model; those of other models stay."""
    entries = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    config = found["config"]
    entries[found["model"]] = {
        "k": found["k"],
        **{key: config[key] for key in ("budget", "windows", "length", "seed")},
        "data": found["data"],
        "versions": {key: found["environment"]["versions"][key] for key in PACKAGES},
        "rows": {name: {key: round(found["metrics"][f"{name}/{key}"], 4) for key in MEASURES} for name in NAMES},
    }
    write_atomic(path, to_json(entries, indent=2) + "\n")


def _parser() -> argparse.ArgumentParser:
    made = parser("variants", __doc__)
    made.add_argument("--windows", type=int, default=4, help="texts (default 4)")
    made.add_argument("--length", type=int, default=512, help="tokens of each text (default 512)")
    made.add_argument("--budget", type=float, default=0.2, help="k as a share of the length (default 0.2)")
    made.add_argument("--text-file", help="a file of text, instead of XSum")
    made.add_argument("--data-dir", help="a folder that holds xsum/<split>.jsonl, instead of the packaged rows")
    made.add_argument("--split", default="validation")
    made.add_argument("--seed", type=int, default=0, help="of the random policy (default 0)")
    made.add_argument("--write", help="a JSON file that receives the numbers, as docs/measured/variants.json")
    return made


if __name__ == "__main__":
    main()
