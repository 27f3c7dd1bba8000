"""Logging for people: one handler, on standard error, through rich."""

from __future__ import annotations

import logging
import warnings

from rich.logging import RichHandler
from rich.text import Text

from h2o_lab.progress import console

NOISY = ("transformers", "datasets", "httpx", "huggingface_hub", "numba", "absl", "filelock", "urllib3")


def set_up(*, quiet: bool = False) -> None:
    """Show h2o_lab's own messages and others' warnings, and progress bars on terminals; `quiet`: warnings alone."""
    handler = RichHandler(console=console, show_path=False, show_level=False, log_time_format="%H:%M:%S")
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler], force=True)
    logging.getLogger("h2o_lab").setLevel(logging.WARNING if quiet else logging.INFO)
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)
    if not console.is_terminal:
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()


def complain(sentence: str) -> None:
    """Say what is wrong, without a traceback."""
    console.print(Text.assemble(("error: ", "bold red"), sentence), soft_wrap=True)
