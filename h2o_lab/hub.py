"""Access to the Hugging Face hub that fails at once, and in one sentence."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from h2o_lab.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset

log = logging.getLogger(__name__)

PROBE_SECONDS = 5.0
"""How long the hub may take to answer before it counts as out of reach."""
PARQUET = "refs/convert/parquet"
"""The branch with the hub's own conversion of a dataset."""


@contextmanager
def hub_access(what: str, instead: str) -> Iterator[None]:
    """Run a body that loads `what` from the hub, turning the hub's errors into one sentence.

    Where the hub does not answer, the body runs in Hugging Face's offline mode: what an earlier run left in
    the local cache is found, and anything else fails at once instead of after five retries.

    Args:
        what: what is loaded, as the user named it.
        instead: what needs no hub, as overrides of the command line.

    Raises:
        UserError: `what` cannot be had from the hub; other errors of the body pass through.
    """
    try:
        with _offline(not hub_reachable()):
            yield
    except Exception as error:
        if reason := hub_reason(error):
            raise UserError(f"{what}: {reason}, or use {instead}.") from error
        raise


def hub_rows(where: tuple[str, ...], split: str) -> Dataset:
    """A split of a dataset: `where` is its repository and perhaps a configuration. Use it in `hub_access`.

    A repository that still builds its rows by a script, which `datasets` no longer runs, is read from the Parquet
    files that the hub itself keeps of it.
    """
    from datasets import load_dataset

    try:
        return load_dataset(*where, split=split)
    except RuntimeError as error:
        if "scripts are no longer supported" not in str(error):
            raise
        return load_dataset(*where, split=split, revision=PARQUET)


def hub_reachable() -> bool:
    """Whether the hub answers within `PROBE_SECONDS`; False in Hugging Face's offline mode."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=PROBE_SECONDS)
    except Exception as error:  # its class is the HTTP client's, which differs between versions of the library
        log.debug("the hub does not answer: %s", error)
        return False
    return True


def hub_reason(error: BaseException) -> str | None:
    """What the hub has to do with `error` and what helps, or None where it is not the cause."""
    from huggingface_hub import errors

    unreachable = "the Hugging Face hub cannot be reached and its local cache lacks this: check the network"
    known: dict[type[BaseException], str] = {
        errors.GatedRepoError: "the repository is gated: accept its terms on the hub and set HF_TOKEN",
        errors.RepositoryNotFoundError: "the hub has no such repository, or it is private: set HF_TOKEN",
        errors.RevisionNotFoundError: "the hub has no such revision of it: check model.revision",
        errors.LocalEntryNotFoundError: unreachable,
        ConnectionError: unreachable,
    }
    chain = list(_chain(error))
    return next((text for kind, text in known.items() if any(isinstance(link, kind) for link in chain)), None)


@contextmanager
def _offline(active: bool) -> Iterator[None]:
    """Hugging Face's offline mode, for the body alone."""
    names = ("huggingface_hub.constants", "datasets.config")
    modules: list[Any] = [sys.modules[name] for name in names if name in sys.modules]
    before = [module.HF_HUB_OFFLINE for module in modules]
    try:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value or active
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """`error` and the errors that it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
