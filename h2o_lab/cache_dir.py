"""Where downloads and converted models are kept between runs."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """`$H2O_LAB_CACHE`, else `$XDG_CACHE_HOME/h2o_lab`, else `~/.cache/h2o_lab`; not created here."""
    if own := os.environ.get("H2O_LAB_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "h2o_lab"
