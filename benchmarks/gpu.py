"""The Triton executor on a CUDA GPU: equality with the reference, then speed against the full cache.

    python benchmarks/gpu.py --out gpu.json
    TRITON_INTERPRET=1 python benchmarks/gpu.py --tiny

Four parts, in at most `--minutes`: (1) equality with the reference executor; (2) what a copy on the device moves
per second, the ceiling for all that reads memory; (3) single attention layers of LLaMA-7B's shape with random
numbers, decoding and scoring, against SDPA and FlashAttention with the full cache; (4) a model body of a few such
layers with random weights. What has no time or memory left says so. `--tiny` runs everything on next to nothing, on
any device: it shows that the script works, and its numbers mean nothing.

No numbers of a GPU have been taken with this script yet: it has only been run with `--tiny` on a CPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from gpu_equality import differences, said
from rich.console import Console
from rich.table import Table
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import DynamicCache, LlamaConfig, LlamaModel

from h2o_lab.attention import Caps, EvictionCache, LayerState, attend, eviction_attention
from h2o_lab.attention.executors import check_executor, triton_runs
from h2o_lab.policies import H2O
from h2o_lab.results.environment import environment

console = Console(width=120)
T = TypeVar("T")
COLUMNS = {
    "part": "",
    "case": "",
    "who": "",
    "tokens_per_second": ",.0f",
    "milliseconds": ".3f",
    "host_milliseconds": ".3f",
    "peak_gib": ".2f",
    "bandwidth_share": ".0%",
}


@dataclass(frozen=True)
class Size:
    """What is measured, and on how much."""

    heads: int = 32
    head: int = 128
    hidden: int = 4096
    inner: int = 11008
    layers: int = 4
    context: int = 4096
    """Tokens of the full cache while decoding."""
    batches: tuple[int, ...] = (1, 16, 64)
    lengths: tuple[int, ...] = (2048, 8192, 32768)
    body_length: int = 2048
    body_batch: int = 16
    steps: int = 32
    copied: int = 2**30
    """Bytes."""
    read: int = 2**28
    """Bytes that steps of decoding go through before they come back to a layer: more than the GPU's cache holds."""
    seconds: float = 1.0
    """Of one measurement, about."""


TINY = Size(
    heads=2,
    head=16,
    hidden=32,
    inner=32,
    layers=2,
    context=20,
    batches=(1, 2),
    lengths=(12,),
    body_length=12,
    body_batch=2,
    steps=2,
    copied=2**20,
    read=1,
    seconds=0.0,
)


@dataclass
class Bench:
    """One run of the script.

    Attributes:
        executor: ours.
        deadline: of `time.monotonic`.
        ceiling: bytes read and written per second by a copy, once it is known.
        rows: what was measured, `COLUMNS` by name.
        skipped: sentences.
    """

    size: Size
    device: torch.device
    dtype: torch.dtype
    executor: str
    budget: float
    deadline: float
    ceiling: float | None = None
    rows: list[dict] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        """Let an error, such as running out of memory, end this case alone."""
        try:
            yield
        except (torch.cuda.OutOfMemoryError, MemoryError):
            self.skipped.append(f"{name}: the memory does not suffice.")
        except Exception as error:
            self.skipped.append(f"{name}: {said(error)}")
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def measure(
        self, part: str, case: str, who: str, run: Callable[[], object], tokens: int, read: int = 0
    ) -> None:
        """Time `run` and note it.

        Args:
            tokens: that one call deals with.
            read: bytes of keys and values that one call must read, for the share of the ceiling.
        """
        name = f"{part}, {case}, {who}"
        if time.monotonic() > self.deadline:
            self.skipped.append(f"{name}: no time is left.")
            return
        with self.case(name):
            if self.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            run()  # compiles
            seconds, host = self._seconds(run)
            peak = torch.cuda.max_memory_allocated() / 2**30 if self.device.type == "cuda" else None
            share = read / seconds / self.ceiling if read and self.ceiling else None
            numbers = (tokens / seconds, seconds * 1e3, host * 1e3, peak, share)
            self.rows.append(dict(zip(COLUMNS, (part, case, who, *numbers), strict=True)))

    def _seconds(self, run: Callable[[], object]) -> tuple[float, float]:
        """Median seconds of a call, and of what the host needs to start it; 3 to 50 rounds of 10 calls at most."""
        first = self._round(run, 1)[0]
        calls = max(1, min(10, int(self.size.seconds / 5 / first)))
        rounds = max(3, min(50, int(self.size.seconds / first / calls)))
        times = []
        for _ in range(rounds):
            times.append(self._round(run, calls))
            if time.monotonic() > self.deadline:
                break
        whole, host = zip(*times, strict=True)
        return statistics.median(whole), statistics.median(host)

    def _round(self, run: Callable[[], object], calls: int) -> tuple[float, float]:
        self.wait()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        host = time.perf_counter() - start
        self.wait()
        return (time.perf_counter() - start) / calls, host / calls

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def entries(self, tokens: int) -> int:
        """The cap k of so many tokens."""
        return max(2, int(self.budget * tokens))

    def draw(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device=self.device, dtype=self.dtype)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--budget", type=float, default=0.2)
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--tiny", action="store_true", help="on any device, to see that the script works")
    args = parser.parse_args()
    start = time.monotonic()
    if not (args.tiny or torch.cuda.is_available()):
        parser.error("there is no CUDA GPU: --tiny shows on any device that the script works")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    executor = "reference" if args.tiny and not triton_runs(device) else "triton"
    check_executor(executor, device)
    bench = Bench(
        TINY if args.tiny else Size(),
        device,
        torch.float32 if device.type == "cpu" else torch.float16,
        executor,
        args.budget,
        start + 60 * args.minutes - 15,  # what is left after the last measurement
    )
    unequal, left_out = differences(device, executor, bench.deadline)
    bench.skipped += left_out
    with torch.inference_mode():
        for part in (copying, decoding, scoring, body):
            with bench.case(part.__name__):
                part(bench)
    console.print(_table(bench))
    for sentence in (*unequal, *bench.skipped):
        console.print(sentence)
    console.print(f"{len(unequal)} cases differ from the reference, {len(left_out)} were not reached.")
    record = {
        "environment": environment(device),
        "executor": executor,
        "dtype": str(bench.dtype),
        "budget": args.budget,
        "tiny": args.tiny,
        "seconds": time.monotonic() - start,
        "copy_bytes_per_second": bench.ceiling,
        "unequal": unequal,
        "rows": bench.rows,
        "skipped": bench.skipped,
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if unequal else 0


def copying(bench: Bench) -> None:
    """Bytes per second that a copy reads and writes."""
    source = torch.zeros(bench.size.copied, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    seconds, _ = bench._seconds(partial(target.copy_, source))
    bench.ceiling = 2 * source.nbytes / seconds


def decoding(bench: Bench) -> None:
    """One layer, one token for every sequence: under the cap, and with the full cache."""
    size, policy = bench.size, H2O()
    for batch in size.batches:
        case = f"batch {batch}, {size.context} tokens"
        q, k, v = (bench.draw(batch, size.heads, 1, size.head) for _ in range(3))
        for executor in (bench.executor, "reference"):
            with bench.case(f"decode, {case}, h2o {executor}"):
                first = _full_state(bench, policy, batch)
                read = first.kv_bytes_reserved
                states = [first, *(_full_state(bench, policy, batch) for _ in range(size.read // read))]
                attends = partial(attend, q, k, v, scale=size.head**-0.5, executor=executor)
                bench.measure("decode", case, f"h2o {executor}", _in_turn(attends, states), batch, read)
                del first, states
        with bench.case(f"decode, {case}, full cache"):
            shape = (batch, size.heads, size.context, size.head)
            read = 2 * math.prod(shape) * q.element_size()
            caches = [(bench.draw(*shape), bench.draw(*shape)) for _ in range(1 + size.read // read)]
            for who, run in _full_attention(causal=False, flash=q.is_cuda):
                full = _in_turn(lambda kv, run=run, q=q: run(q, *kv), caches)
                bench.measure("decode", case, who, full, batch, read)
            del caches


def scoring(bench: Bench) -> None:
    """One layer over a whole text."""
    size, policy = bench.size, H2O()
    for length in size.lengths:
        case = f"{length} tokens"
        q, k, v = (bench.draw(1, size.heads, length, size.head) for _ in range(3))
        caps = Caps.of(policy, [bench.entries(length)])

        def evicting(q=q, k=k, v=v, caps=caps) -> None:
            state = LayerState.empty(policy, caps, k, v)
            attend(q, k, v, state, scale=size.head**-0.5, executor=bench.executor)

        bench.measure("score", case, f"h2o {bench.executor}", evicting, length)
        for who, run in _full_attention(causal=True, flash=q.is_cuda):
            bench.measure("score", case, who, partial(run, q, k, v), length)


def body(bench: Bench) -> None:
    """A few layers of a model with random weights: a text scored, and steps of decoding behind it."""
    size = bench.size
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=size.hidden,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        max_position_embeddings=2 * size.body_length,
    )
    with bench.device:
        model = LlamaModel(config).to(bench.dtype).eval()
    k = bench.entries(size.body_length)
    caches = {
        f"h2o {bench.executor}": lambda: EvictionCache(size.layers, H2O(), k, executor=bench.executor),
        "full cache, SDPA": DynamicCache,
    }
    text = torch.randint(256, (1, size.body_length), device=bench.device)
    texts = text.expand(size.body_batch, -1)[:, : size.body_length // 4]
    for who, new in caches.items():

        def read(ids, cache) -> None:
            # a cache of ours is told by what it attends through
            with eviction_attention(model) if isinstance(cache, EvictionCache) else torch.no_grad():
                model(ids, cache=cache)

        case = f"{size.layers} layers, {size.body_length} tokens"
        bench.measure("body, score", case, who, lambda new=new, read=read: read(text, new()), size.body_length)
        with bench.case(f"body, decode, {who}"):
            cache = new()
            read(texts, cache)
            token = texts[:, :1]

            def steps(cache=cache, token=token, read=read) -> None:
                for _ in range(size.steps):
                    read(token, cache)
                if isinstance(cache, DynamicCache):
                    cache.crop(-size.steps)

            case = f"{size.layers} layers, batch {size.body_batch}, behind {texts.shape[1]}"
            bench.measure("body, decode", case, who, steps, size.body_batch * size.steps)


def _full_state(bench: Bench, policy: H2O, batch: int) -> LayerState:
    """A layer whose sequences have reached their cap."""
    k = bench.entries(bench.size.context)
    like = bench.draw(batch, bench.size.heads, 1, bench.size.head)
    state = LayerState.empty(policy, Caps.of(policy, [k] * batch), like, like, capacity=k)
    state.reserve(k)
    for tensor in (state.keys, state.values):
        tensor.normal_()
    state.scores.uniform_()
    state.positions.copy_(torch.arange(k, device=bench.device).expand_as(state.positions))
    state.seen = torch.full((batch,), k)
    return state


def _in_turn(run: Callable[[T], object], layers: list[T]) -> Callable[[], object]:
    """A call that goes to the next layer each time."""
    turn = itertools.cycle(layers)
    return lambda: run(next(turn))


def _full_attention(*, causal: bool, flash: bool) -> Iterator[tuple[str, Callable[..., object]]]:
    """Of q, k and v: PyTorch's choice, and FlashAttention."""
    plain = partial(scaled_dot_product_attention, is_causal=causal)
    yield "full cache, SDPA", plain
    if flash:

        def only_flash(q, k, v) -> None:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                plain(q, k, v)

        yield "full cache, FlashAttention", only_flash


def _table(bench: Bench) -> Table:
    name = torch.cuda.get_device_name() if bench.device.type == "cuda" else "CPU"
    ceiling = f"{bench.ceiling / 1e9:,.0f} GB/s" if bench.ceiling else "unknown"
    table = Table(title=f"{name}, {bench.dtype}, h2o b = {bench.budget}; a copy moves {ceiling}")
    for column, how in COLUMNS.items():
        table.add_column(column.replace("_", " "), justify="right" if how else "left")
    for row in bench.rows:
        table.add_row(*(format(row[c], how) if row[c] is not None else "–" for c, how in COLUMNS.items()))
    return table


if __name__ == "__main__":
    raise SystemExit(main())
