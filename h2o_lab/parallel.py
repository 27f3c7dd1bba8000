"""One cell in several processes at once, each with a part of the model (`model.tp_plan`), as torchrun starts them.

The first process does all that a single one does. The others run no Hydra job: they wait for cells (`follow`) and
evaluate each in step with the first, because a layer's sums need them all; what they get is thrown away. They are
told what to do as JSON, through the key-value store by which torchrun's processes find each other: unlike a
broadcast, it lets them wait for as long as the first one has other things to do.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import Store

    from h2o_lab.cells import Journal

log = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds that a process whose cell failed waits for the others to fail too."""
SLOWEST = 2 * 3600.0
"""Seconds that a process which has finished a cell waits for the others, as long as transformers' own limit."""
WAIT = timedelta(days=20)
"""For the next cell; torch counts it in milliseconds of 31 bits."""
PART = 2**22
"""Bytes of one entry of the store, which takes 8 MiB at most."""
TOGETHER = "The processes that share a model go on together or not at all; a new start goes on from here."
FINISHED, FAILED = "finished", "failed"

_numbers = count()
"""Of the cells that the processes evaluate in step: each counts them for itself."""


class OutOfStep(Exception):  # noqa: N818 (it says where the processes are)
    """A cell came out differently in the processes that share it, so that they cannot go on together."""


def size() -> int:
    """The number of processes that torchrun has started, on all machines together; 1 without it."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def follows() -> bool:
    """Whether this process is one of several and not the first."""
    return size() > 1 and os.environ["RANK"] != "0"


@contextmanager
def in_step(cell: str, config: dict[str, Any], journal: Journal) -> Iterator[None]:
    """Let the other processes, if there are any, evaluate a cell while the context lasts.

    Args:
        cell: its fingerprint, which they compare with theirs.
        config: the resolved configuration.
        journal: what is half done, which they need not compute either.

    Raises:
        OutOfStep: it failed here or elsewhere and not in all processes, or torchrun is gone.
    """
    if size() == 1:
        yield
        return
    number = next(_numbers)
    _tell(number, {"cell": cell, "config": config, "known": journal.known})
    with _agreed(number):
        yield


def meet() -> None:
    """Wait until all processes that share a loaded model are here, so that what follows can be timed."""
    import torch.distributed as dist

    if size() > 1 and dist.is_initialized():
        dist.barrier()


def dismiss() -> None:
    """Let the other processes end: the first one calls it when it has nothing more to do."""
    if size() > 1:
        with suppress(OutOfStep):
            _tell(next(_numbers), None)


def follow() -> None:
    """Evaluate the cells that the first process announces, until it has no more. Says nothing but errors.

    Ends the process with code 1 where a cell comes out differently here, and torchrun then ends the others.
    """
    from h2o_lab.log import set_up

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is kept here that an interrupt could spoil
    os.environ["TQDM_DISABLE"] = "1"
    set_up(quiet=True)
    logging.disable(logging.WARNING)
    try:
        while (told := _hear(number := next(_numbers))) is not None:
            try:
                with _agreed(number):
                    _evaluate(told["cell"], told["config"], told["known"])
            except OutOfStep:
                raise
            except Exception:  # the first process has the same, and says it
                continue
    except OutOfStep:
        log.exception("process %s cannot go on", os.environ["RANK"])
        sys.exit(1)


def _evaluate(name: str, config: dict[str, Any], known: dict[str, Any]) -> None:
    """The other side of `compute`."""
    from omegaconf import OmegaConf

    from h2o_lab.cells import Echo
    from h2o_lab.cells.identity import identity, name_of
    from h2o_lab.checks import check
    from h2o_lab.compute import run_cell, task_data
    from h2o_lab.errors import UserError
    from h2o_lab.models import model_fingerprint

    cfg: Any = OmegaConf.create(config)
    plan = check(cfg)
    data, content = task_data(OmegaConf.to_yaml(cfg.task, resolve=True), OmegaConf.to_yaml(cfg.data, resolve=True))
    if name_of(identity(cfg, plan, content, model_fingerprint(cfg.model))) != name:
        raise UserError(
            f"the model, data or code of process {os.environ['RANK']} differ from those of the first: every "
            "machine has to have the same."
        )
    run_cell(cfg, plan, data, Echo(known), {})


@contextmanager
def _agreed(number: int) -> Iterator[None]:
    """A cell that is evaluated in all processes: an error leaves the context as it is where all have one.

    Raises:
        OutOfStep: only some have.
    """
    try:
        yield
    except Exception as error:
        if not _all_say(number, FAILED, PATIENCE):
            raise OutOfStep(
                f"{type(error).__name__} in process {os.environ['RANK']}: {error} {TOGETHER}"
            ) from error
        raise
    if not _all_say(number, FINISHED, SLOWEST):
        raise OutOfStep(f"another process failed where process {os.environ['RANK']} did not. {TOGETHER}")


def _all_say(number: int, word: str, patience: float) -> bool:
    """Say how a cell came out here, and whether all others say the same within so many seconds."""
    keys = [f"{number}/{rank}" for rank in range(size())]
    deadline = time.monotonic() + patience
    with _store() as store:
        store.set(f"{number}/{os.environ['RANK']}", word)
        while not store.check(keys):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return all(store.get(key) == word.encode() for key in keys)


def _tell(number: int, message: Any) -> None:
    """Leave a message of any length; its number of parts comes last, and says that it is complete."""
    from h2o_lab.results.store import plain

    text = json.dumps(plain(message))
    parts = [text[start : start + PART] for start in range(0, len(text), PART)]
    with _store() as store:
        for place, part in enumerate(parts):
            store.set(f"{number}/part{place}", part)
        store.set(f"{number}", str(len(parts)))


def _hear(number: int) -> Any:
    """Wait for a message."""
    with _store() as store:
        store.wait([f"{number}"], WAIT)
        parts = int(store.get(f"{number}"))
        return json.loads(b"".join(store.get(f"{number}/part{place}") for place in range(parts)))


@contextmanager
def _store() -> Iterator[Store]:
    """What all processes can read and write.

    Raises:
        OutOfStep: it cannot be reached any more.
    """
    from torch.distributed import DistError

    try:
        yield _connected()
    except DistError as error:
        raise OutOfStep(f"torchrun is gone, and with it the way to the other processes. {TOGETHER}") from error


@cache
def _connected() -> Store:
    from torch.distributed import PrefixStore, rendezvous

    store, _, _ = next(rendezvous("env://"))
    return PrefixStore("h2o_lab", store)
