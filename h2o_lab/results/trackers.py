"""Where a run is logged besides its result folder: nowhere, or Weights & Biases.

The result folder is the record and W&B only mirrors it: whatever goes wrong there is one warning, and the run
goes on.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from h2o_lab.errors import UserError
from h2o_lab.results.collect import flatten
from h2o_lab.results.store import STATS, plain, sentence, to_json

if TYPE_CHECKING:
    import wandb

    from h2o_lab.config import TrackerConfig

log = logging.getLogger(__name__)


def check_tracker(cfg: "TrackerConfig") -> None:
    """Refuse an unknown tracker or mode.

    Raises:
        UserError: says which are allowed.
    """
    if cfg.name not in TRACKERS:
        raise UserError(f"tracker.name is {cfg.name!r}; allowed are {', '.join(TRACKERS)}.")
    if cfg.mode not in MODES:
        raise UserError(f"tracker.mode is {cfg.mode!r}; allowed are {', '.join(MODES)}.")


TRACKERS = ("wandb", "none")
MODES = ("auto", "online", "offline")
STATS_SHOWN = ("heads", "layers", "times", "kinds")
"""Tables of recorded attention that W&B shows; the artifact has all."""
SAMPLE_ROWS = 1000
"""The most questions that the W&B table of one run shows; `samples.jsonl` has all of them."""
INIT_TIMEOUT = 20
"""Seconds that W&B may take to start a run."""
FINISH_TIMEOUT = 60
"""Seconds that W&B may take at the end of a run to upload what is left of it."""


class Tracker:
    """The tracker `none`, and what any other offers. An error that leaves its `with` block fails the run."""

    def log(self, result: Mapping[str, Any], samples: list[dict[str, Any]]) -> None:
        """Take over a finished cell: its result and its questions."""

    def fail(self, error: BaseException) -> None:
        """Mark the run as failed."""

    def close(self) -> None:
        """End the run; the tracker is not used afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.fail(error)
        self.close()


def tracker(cfg: "TrackerConfig", config: dict[str, Any], folder: Path, group: str, name: str) -> Tracker:
    """Start tracking the cell `name` of the sweep `group`; offline files go into `folder`/wandb.

    `config` is the resolved configuration; its task's kind is the job type. `cfg.group`, where set, replaces
    `group`.

    Raises:
        UserError: `cfg.name` or `cfg.mode` is unknown. Nothing that W&B itself does raises.
    """
    check_tracker(cfg)
    if cfg.name == "none":
        return Tracker()
    return WandbTracker(cfg, config, folder, cfg.group or group, name)


class WandbTracker(Tracker):
    """One W&B run for one cell; without a run, where none could be started, it does nothing."""

    server_fails: ClassVar[bool] = False
    """Set by the first online run that could not be started, so that a sweep waits for it only once."""

    def __init__(self, cfg: "TrackerConfig", config: dict[str, Any], folder: Path, group: str, name: str) -> None:
        self._run: wandb.Run | None = None
        self._exit_code = 0
        self._folder = folder
        place: dict[str, Any] = {"project": cfg.project, "entity": cfg.entity, "group": group, "name": name}
        place |= {"dir": str(folder), "tags": list(cfg.tags), "job_type": config["task"]["kind"]}
        online = False
        with _harmless("find out whether to go online"):
            online = not self.server_fails and _goes_online(cfg.mode)
        if online:
            with _harmless("start an online run, so this sweep is kept offline"):
                self._run = _start("online", config, place)
                log.info("W&B: %s", self._run.url)
            WandbTracker.server_fails = self._run is None
        if self._run is None:
            with _harmless("start an offline run"):
                self._run = _start("offline", config, place)
                files = os.path.relpath(Path(self._run.dir).parent)
                log.info("W&B: offline run in %s; upload it with `wandb sync`", files)

    def log(self, result: Mapping[str, Any], samples: list[dict[str, Any]]) -> None:
        """The flattened result becomes the summary, the first `SAMPLE_ROWS` questions `samples_table`; recorded
        attention becomes tables, a picture, and an artifact with its files."""
        if self._run is None:
            return
        with _harmless("log the result"):
            self._run.summary.update(flatten(plain(result)))
        with _harmless("log the questions"):
            if samples:
                self._run.log({"samples_table": _table(samples[:SAMPLE_ROWS])})
        if (self._folder / STATS).is_dir():
            with _harmless("log the recorded attention"):
                _log_stats(self._run, self._folder)

    def fail(self, error: BaseException) -> None:
        """Mark the run as failed, with the error in its summary."""
        self._exit_code = 1
        if self._run is not None:
            with _harmless("log the error"):
                self._run.summary.update({"error": sentence(error)})

    def close(self) -> None:
        """End the run; what `FINISH_TIMEOUT` is too short to upload stays in the folder for `wandb sync`."""
        if self._run is not None:
            with _harmless("end the run"):
                self._run.finish(exit_code=self._exit_code)
        self._run = None


@contextmanager
def _harmless(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        log.warning("W&B could not %s (%s); the result folder has everything.", what, sentence(error))


def _goes_online(mode: str) -> bool:
    """Whether to upload: W&B is asked for a key (environment, netrc, its settings), the user never is."""
    if mode == "offline":
        return False
    import wandb
    from wandb.sdk.lib import wbauth

    settings = wandb.setup(wandb.Settings(silent=True)).settings
    if mode == "auto" and settings.mode != "online":  # WANDB_MODE or `wandb offline`
        return False
    key = wbauth.authenticate_session(host=settings.base_url, source="h2o_lab", prompt=False, update_session=False)
    if mode == "online" and key is None:
        log.warning("W&B: tracker.mode is online but no key is configured, so the run is kept offline.")
    return key is not None


def _start(mode: Literal["online", "offline"], config: dict[str, Any], place: dict[str, Any]) -> "wandb.Run":
    """A W&B run that records what it is given and nothing else: no code, console, git or system metrics."""
    import wandb

    settings = wandb.Settings(
        silent=True,
        console="off",
        init_timeout=INIT_TIMEOUT,
        finish_timeout=FINISH_TIMEOUT,
        disable_code=True,
        disable_git=True,
        save_code=False,
        symlink=False,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    return wandb.init(mode=mode, config=plain(config), reinit="create_new", settings=settings, **place)


def _log_stats(run: "wandb.Run", folder: Path) -> None:
    import wandb
    from PIL import Image

    from h2o_lab.stats import TABLES, read
    from h2o_lab.stats.charts import overview

    tables = {name: read(folder, name) for name in TABLES}
    shown = {f"stats/{name}": wandb.Table(dataframe=tables[name]) for name in STATS_SHOWN}
    picture = BytesIO()
    overview(tables).savefig(picture, format="png", dpi=150)
    run.log(shown | {"stats/overview": wandb.Image(Image.open(picture))})
    artifact = wandb.Artifact(f"attention-{run.id}", type="attention-statistics", description="; ".join(TABLES))
    artifact.add_dir(str(folder / STATS))
    run.log_artifact(artifact)


def _table(samples: list[dict[str, Any]]) -> "wandb.Table":
    """One column per key of any sample; what W&B has no cell for, such as a list, is written as JSON."""
    import wandb

    rows = [plain(sample) for sample in samples]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    data: list[Iterable[Any]] = [[_table_cell(row.get(name)) for name in columns] for row in rows]
    return wandb.Table(columns=columns, data=data, allow_mixed_types=True)


def _table_cell(value: Any) -> Any:
    return to_json(value) if isinstance(value, list | dict) else value
