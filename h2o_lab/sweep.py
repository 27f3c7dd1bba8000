"""Before a sweep starts, every one of its cells is checked, so that a typo in the last does not cost a night."""

from __future__ import annotations

import copy
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, NamedTuple, cast

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from h2o_lab.checks import check
from h2o_lab.config import Config, config_dir, register, threads, workers
from h2o_lab.errors import UserError
from h2o_lab.log import complain, set_up
from h2o_lab.parallel import size

log = logging.getLogger(__name__)

EXTRAS = {
    "hydra_joblib_launcher": "joblib",
    "hydra_submitit_launcher": "submitit",
    "hydra_ray_launcher": "ray",
    "hydra_optuna_sweeper": "optuna",
}
"""Packages of Hydra's plugins, and the extra of h2o_lab that brings each."""
BUDGET = re.compile(r"budget=[0-9.]+")
AT_ONCE = 4
"""Most cells at once where a launcher of this machine has no limit of its own."""


class CheckAllCells(Callback):
    """Hydra callback: composes and checks all cells of a multirun; the process ends with code 2 if one is wrong.

    Where cells run in this process, it then says after each how far the sweep has come.
    """

    def __init__(self) -> None:
        self._total = self._done = self._failed = 0
        self._start = 0.0

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        self._done += 1
        self._failed += job_return.status is not JobStatus.COMPLETED or job_return.return_value is None
        rest = self._total - self._done
        if rest > 0:
            seconds = (time.monotonic() - self._start) / self._done * rest
            left = str(timedelta(seconds=round(seconds)))
            log.info("%d of %d cells, %d failed, about %s left", self._done, self._total, self._failed, left)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        set_up(quiet=config.quiet)
        hydra = config.hydra
        try:
            check_plugins(hydra)
            if not _is(hydra.sweeper, "BasicSweeper"):
                _quiet_optuna(hydra.sweeper)
                log.warning(
                    "%s chooses cells as it goes, so that each is checked when it starts.", _name(hydra, "sweeper")
                )
                return
            if _is(hydra.launcher, "LocalLauncher"):
                share_machine(hydra.sweeper)
            loader = GlobalHydra.instance().config_loader()
            preset = [f"{key}={value}" for key, value in (hydra.sweeper.get("params") or {}).items()]
            grid = cells(preset + list(hydra.overrides.task), loader)
        except (UserError, HydraException) as error:
            complain(f"{error} (nothing was run)")
            sys.exit(2)
        for overrides in grid:
            try:
                check(cast(Config, compose("config", overrides + list(hydra.overrides.hydra))))
            except (UserError, HydraException) as error:
                complain(f"{error} (cell {' '.join(overrides)}; nothing was run)")
                sys.exit(2)
        self._total, self._start = len(grid), time.monotonic()


def cells(overrides: list[str], loader: ConfigLoader) -> list[list[str]]:
    """The override lists of all cells of a sweep, in the order the basic sweeper runs them.

    Raises:
        UserError: an override, as `interval(...)`, stands for no list of values.
        HydraException: an override cannot be read.
    """
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(overrides)
    for override in parsed:
        if override.is_sweep_override() and not override.is_discrete_sweep():
            raise UserError(
                f"{override.input_line} is no list of values: use commas, choice(...) or range(...), or a sweeper "
                "that searches, as hydra/sweeper=h2o_optuna."
            )
    return [cell for batch in BasicSweeper.split_arguments(parsed, max_batch_size=None) for cell in batch]


class Composed(NamedTuple):
    """A cell of a sweep: its overrides, and its configuration."""

    overrides: list[str]
    cfg: Config


def composed(overrides: Sequence[str]) -> list[Composed]:
    """Every cell that `python -m h2o_lab.run -m` would start with these overrides, in its order; none is checked.

    Raises:
        UserError: a cell cannot be composed, or a sweeper searches instead of taking a list.
        HydraException: the overrides cannot be composed.
    """
    register()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        hydra = loader.load_configuration("config", list(overrides), run_mode=RunMode.MULTIRUN).hydra
        if not _is(hydra.sweeper, "BasicSweeper"):
            raise UserError(
                f"{_name(hydra, 'sweeper')} chooses its cells as it goes: only a sweep of listed values has cells "
                "that are known before, with hydra/sweeper=basic."
            )
        preset = [f"{key}={value}" for key, value in (hydra.sweeper.get("params") or {}).items()]
        grid = cells(preset + list(hydra.overrides.task), loader)
        return _compose_all(grid, list(hydra.overrides.hydra))


def _compose_all(grid: list[list[str]], besides: list[str]) -> list[Composed]:
    """Compositions take long, so that cells that differ in the number of `budget` alone share one."""
    made: dict[tuple[str, ...], DictConfig] = {}
    found = []
    for words in grid:
        budgets = [word for word in words if BUDGET.fullmatch(word)]
        rest = [word for word in words if word not in budgets]
        try:
            if tuple(rest) not in made:
                made[tuple(rest)] = compose("config", rest + besides)
        except HydraException as error:
            raise in_cell(error, words) from error
        cfg = copy.deepcopy(made[tuple(rest)])
        for word in budgets:
            cfg.budget = float(word.partition("=")[2])
        found.append(Composed(words, cast(Config, cfg)))
    return found


def in_cell(error: Exception, overrides: Sequence[str]) -> UserError:
    """The error, with the cell in which it occurred."""
    return UserError(f"{error} (cell {' '.join(overrides) or 'without overrides'})")


def check_plugins(hydra: DictConfig) -> None:
    """Refuse a launcher or sweeper that cannot work here.

    Raises:
        UserError: says what to install, or where to start the command.
    """
    for kind in ("launcher", "sweeper"):
        package = str(hydra[kind].get("_target_")).split(".")
        extra = EXTRAS.get(package[1]) if package[0] == "hydra_plugins" else None
        if extra is not None and not _installed(package[1]):
            raise UserError(
                f"{_name(hydra, kind)} needs a package that is not installed: "
                f"pip install 'h2o_lab[{extra}]', or in a clone pip install -e '.[{extra}]'."
            )
    if _is(hydra.launcher, "SlurmLauncher") and shutil.which("srun") is None:
        raise UserError(
            f"{_name(hydra, 'launcher')} needs SLURM, and there is no srun here: start it on a cluster."
        )
    if size() > 1 and not _is(hydra.launcher, "BasicLauncher"):
        raise UserError(
            f"{_name(hydra, 'launcher')} starts processes of its own, and so does torchrun: use "
            "hydra/launcher=basic, or start without torchrun."
        )


def _installed(plugin: str) -> bool:
    try:
        return find_spec(f"hydra_plugins.{plugin}") is not None
    except ModuleNotFoundError:
        return False


def _name(hydra: DictConfig, kind: str) -> str:
    """As on the command line."""
    return f"hydra/{kind}={hydra.runtime.choices[f'hydra/{kind}']}"


def _is(plugin: DictConfig, name: str) -> bool:
    return str(plugin.get("_target_")).endswith(f".{name}")


def share_machine(sweeper: DictConfig) -> None:
    """submitit starts all cells of a batch at once, and each would take all cores."""
    sweeper.max_batch_size = sweeper.max_batch_size or workers(AT_ONCE)
    for variable in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(variable, str(threads(sweeper.max_batch_size)))


def _quiet_optuna(sweeper: DictConfig) -> None:
    """Optuna has log messages of its own about each study; what it finds is in the summary."""
    if _is(sweeper, "OptunaSweeper"):
        from optuna import logging as optuna_logging

        optuna_logging.set_verbosity(optuna_logging.WARNING)
