"""Before a sweep starts, every one of its cells is checked, so that a typo in the last does not cost a night."""

from __future__ import annotations

import sys
from typing import Any, cast

from hydra import compose
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from h2o_lab.checks import check
from h2o_lab.config import Config
from h2o_lab.errors import UserError
from h2o_lab.log import complain, set_up


class CheckAllCells(Callback):
    """Hydra callback: composes and checks all cells of a multirun; the process ends with code 2 if one is wrong."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        set_up()
        hydra_words = list(config.hydra.overrides.hydra)
        loader = GlobalHydra.instance().config_loader()
        preset = [f"{key}={value}" for key, value in (config.hydra.sweeper.get("params") or {}).items()]
        for overrides in cells(preset + list(config.hydra.overrides.task), loader):
            try:
                check(cast(Config, compose("config", overrides + hydra_words)))
            except (UserError, HydraException) as error:
                complain(f"{error} (cell {' '.join(overrides)}; nothing was run)")
                sys.exit(2)


def cells(overrides: list[str], loader: ConfigLoader) -> list[list[str]]:
    """The override lists of all cells of a sweep, in the order the basic sweeper runs them."""
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(overrides)
    return [cell for batch in BasicSweeper.split_arguments(parsed, max_batch_size=None) for cell in batch]
