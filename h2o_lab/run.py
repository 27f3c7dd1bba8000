"""The main job: one cell (model x task x policy x budget), or with `-m` a sweep of them.

python -m h2o_lab.run policy=h2o budget=0.2
python -m h2o_lab.run -m policy=h2o,local budget=0.04,0.2,0.6
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from h2o_lab import log, parallel
from h2o_lab.config import Config, config_dir, register
from h2o_lab.errors import UserError

logger = logging.getLogger("h2o_lab.run")
register()


@hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="config")
def main(cfg: Config) -> float | None:
    """Run one cell and record it; a failure is recorded too, and does not stop a sweep.

    Returns:
        The main metric, or with `within` the `shortfall`, for sweepers that optimise; None where the cell failed.
    """
    from h2o_lab.search import full_cache, shortfall

    log.set_up(quiet=cfg.quiet)
    job = HydraConfig.get()
    folder = Path(job.runtime.output_dir)
    in_sweep = job.mode == RunMode.MULTIRUN
    group = Path(job.sweep.dir).name if in_sweep else folder.name
    overrides = list(job.overrides.task)
    name = " ".join(overrides) or "the default cell"
    try:
        record = recorded(cfg, folder, overrides, group, name)
        found = f"found finished in {record['reused_from']}" if "reused_from" in record else "results"
        logger.info("%s: %s; %s in %s", name, headline(record), found, os.path.relpath(folder))
        if cfg.within is None:
            return record["metrics"][record["main_metric"]]
        full = recorded(full_cache(cfg), folder / "full", overrides, group, f"{name}, full cache")
        return shortfall(record, full, cfg.within)
    except UserError as error:
        log.complain(str(error))
        if in_sweep:
            known = {"model": cfg.model.name, "task": cfg.task.name, "budget": cfg.budget, "overrides": overrides}
            leave_record(folder, error, known)
        _end(in_sweep, 2)
    except KeyboardInterrupt:
        log.complain(f"interrupted in {name}: finished cells are kept, and a new start goes on from here.")
        sys.exit(130)
    except parallel.OutOfStep as error:
        log.complain(str(error))
        sys.exit(1)
    except Exception:
        logger.exception("this cell failed: %s", name)
        _end(in_sweep, 1)
    return None


def recorded(cfg: Config, folder: Path, overrides: list[str], group: str, name: str) -> dict[str, Any]:
    """Check a cell and compute it into a folder; a failure is recorded there too. Arguments as of `compute`.

    Raises:
        UserError: something is wrong with the configuration, data or model, or a file cannot be written.
    """
    from h2o_lab.checks import check
    from h2o_lab.compute import compute, describe
    from h2o_lab.results import open_result

    plan = check(cfg)
    result = open_result(folder)
    try:
        return compute(cfg, plan, result, overrides, group, name)
    except (Exception, KeyboardInterrupt) as error:
        with suppress(UserError):  # it was finished before, or the disk is full
            result.fail(error, describe(cfg, plan) | {"overrides": overrides})
        raise


def leave_record(folder: Path, error: UserError, known: dict[str, Any]) -> None:
    """Let a cell of a sweep that could not even begin have a record too, so that the sweep's table shows why."""
    from h2o_lab.results import open_result

    with suppress(UserError):  # it has one
        open_result(folder).fail(error, known)


def headline(record: dict[str, Any]) -> str:
    """The main metric of a record in a few words."""
    metric = record["main_metric"]
    error = record["metrics"].get(f"{metric}_stderr")
    spread = f" ± {error:.3f}" if error is not None else ""
    return f"{metric} {record['metrics'][metric]:.3f}{spread}"


def _end(in_sweep: bool, code: int) -> None:
    """A single run ends with an exit code; a sweep goes on, and its summary says what failed."""
    if not in_sweep:
        sys.exit(code)


def start() -> None:
    """The command: `main`, and one sentence where it is interrupted while cells run in other processes.

    Of several processes that torchrun has started, only the first runs `main`.
    """
    if parallel.follows():
        parallel.follow()
        return
    try:
        main()
    except KeyboardInterrupt:
        log.complain("interrupted: finished cells are kept, and a new start goes on from here.")
        sys.exit(130)
    finally:
        parallel.dismiss()


if __name__ == "__main__":
    # under its own name, so that workers in other processes find what it refers to
    import_module("h2o_lab.run").start()
