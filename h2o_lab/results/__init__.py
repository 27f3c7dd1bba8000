"""Results: written by runs (`open_result`), read back (`load`), shown as tables, logged to trackers."""

from h2o_lab.results.collect import load, load_samples, originals, records
from h2o_lab.results.environment import environment, peak_memory_bytes
from h2o_lab.results.store import ResultFolder, open_result
from h2o_lab.results.table import sweep_table, write_table
from h2o_lab.results.trackers import Tracker, tracker

__all__ = [
    "ResultFolder",
    "Tracker",
    "environment",
    "load",
    "load_samples",
    "open_result",
    "originals",
    "peak_memory_bytes",
    "records",
    "sweep_table",
    "tracker",
    "write_table",
]
