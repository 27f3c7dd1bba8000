"""Cells that are computed once: what makes two the same, where they are kept, and how far they have come."""

from h2o_lab.cells.cell import Cell
from h2o_lab.cells.fingerprint import fingerprint, fingerprint_files
from h2o_lab.cells.journal import Echo, Journal

__all__ = ["Cell", "Echo", "Journal", "fingerprint", "fingerprint_files"]
