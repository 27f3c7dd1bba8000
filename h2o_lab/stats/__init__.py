"""What attention does: recorded while a cell is evaluated (`stats=attention`), stored as tables."""

from h2o_lab.stats.power_law import fit
from h2o_lab.stats.recorder import Recorder
from h2o_lab.stats.tables import TABLES, files, has_tables, headline, read, tables

__all__ = ["TABLES", "Recorder", "files", "fit", "has_tables", "headline", "read", "tables"]
