"""What the experiments share: texts, the model, and a result folder like that of any other run."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numba
import torch
from rich.console import Console
from rich.table import Table

from h2o_lab import log
from h2o_lab.config import DataConfig, ModelConfig
from h2o_lab.data import load_rows
from h2o_lab.errors import UserError
from h2o_lab.models import LoadedModel
from h2o_lab.results import environment, open_result

logger = logging.getLogger("h2o_lab.experiments")


def parser(name: str, description: str | None, *, model: bool = True) -> argparse.ArgumentParser:
    """The arguments that every experiment has; `model` says whether it reads one."""
    made = argparse.ArgumentParser(
        prog=f"python -m experiments.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if model:
        made.add_argument("--model-path", help="a folder of save_pretrained, instead of the packaged model")
    made.add_argument("--threads", type=int, default=torch.get_num_threads())
    made.add_argument("--results-dir", default="results")
    return made


def record(
    args: argparse.Namespace,
    task: str,
    run: Callable[[], tuple[dict[str, Any], list[dict[str, Any]]]],
    table: Callable[[dict[str, Any]], Table],
) -> dict[str, Any]:
    """Run an experiment, record it in a folder of its own, and show its table.

    Args:
        args: the arguments, kept as the configuration.
        task: the experiment's name.
        run: gives the result record (its `metrics` among it) and the samples.
        table: draws the record's metrics.

    Returns:
        The record. A wrong argument or missing data ends the program with code 2 and one sentence.
    """
    log.set_up()
    model = model_config(args).name if hasattr(args, "model_path") else "constructed"
    about = {"model": model, "task": task, "config": vars(args), "overrides": sys.argv[1:]}
    about |= {"seed": args.seed} if hasattr(args, "seed") else {}
    try:
        result = open_result(Path(args.results_dir) / f"{datetime.now():%Y-%m-%d_%H-%M-%S-%f}")
        result.write_config(vars(args))
        environment()  # its commit is that of the code that runs, whatever is committed meanwhile
        try:
            _set_threads(args.threads)
            found, samples = run()
            found = about | found
            result.write_samples(samples)
            result.finish(found)
        except (Exception, KeyboardInterrupt) as error:
            result.fail(error, about)
            raise
    except UserError as error:
        log.complain(str(error))
        sys.exit(2)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    console.print(table(found["metrics"]))
    logger.info("results in %s", os.path.relpath(result.path))
    return found


def _set_threads(threads: int) -> None:
    if threads < 1:
        raise UserError(f"--threads {threads} is out of range: it must be 1 or more.")
    # numba first: its start sets torch's threads too
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    torch.set_num_threads(threads)


def model_config(args: argparse.Namespace) -> ModelConfig:
    """The packaged model, or the folder that was named."""
    if args.model_path:
        return ModelConfig(name=Path(args.model_path).name, source="local", path=args.model_path)
    return ModelConfig(name="smollm2_135m", source="packaged")


def xsum_windows(
    loaded: LoadedModel, count: int, length: int, data_dir: str | None, split: str
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The opening tokens of the first XSum articles that are long enough.

    Returns:
        int64 [count, length], and where they come from.

    Raises:
        UserError: there are too few, or no such split.
    """
    source = DataConfig(source="folder", dir=data_dir) if data_dir else DataConfig(source="packaged")
    rows = load_rows("xsum", source)
    if rows is None or split not in rows.splits:
        raise UserError(f"there is no split {split}: use --split {' or '.join(rows.splits if rows else [])}.")
    texts = (loaded.tokenizer(row["document"]).input_ids for row in rows.splits[split])
    found = list(islice((ids[:length] for ids in texts if len(ids) >= length), count))
    if len(found) < count:
        raise UserError(f"only {len(found)} articles have {length} tokens or more, and {count} are asked for.")
    return torch.tensor(found), {"source": source.source, "origin": rows.origin, "split": split}


def file_windows(loaded: LoadedModel, path: str, count: int, length: int) -> torch.Tensor:
    """The first windows of a text file, one after the other, int64 [count, length].

    Raises:
        UserError: there is no such file, or it is too short.
    """
    if not Path(path).is_file():
        raise UserError(f"there is no file {path}.")
    ids = loaded.tokenizer(Path(path).read_text(encoding="utf-8"), return_tensors="pt").input_ids[0]
    if len(ids) < count * length:
        raise UserError(f"{path} has {len(ids)} tokens, and {count} windows of {length} are asked for.")
    return ids[: count * length].view(count, length)
