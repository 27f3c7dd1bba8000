"""Side by side with peers: transformers' full cache, NVIDIA/kvpress and h2o_lab, on the same weights and tokens.

    python benchmarks/peers.py --context 1024 4096 --repeats 5 --threads 2

Each runs in an environment of its own, which the first start makes below the cache folder (minutes; a later one
takes it over): transformers in our version, kvpress 0.5.5 with the transformers that it pins, and this checkout.
All have the same release of torch, SmolLM2-135M in float32, batch 1, and as many threads. They are processes that
stay and take turns, a passage of a novel each round; what is shown is the median over the rounds.

- prefill: seconds to read a prompt of `context` tokens, up to the logits of its last one.
- decode: tokens per second. The tokens are the novel's own, one at a time, so that all do the same work.
- KV: bytes of keys and values held after the prompt and after the continuation.
- peak: the most memory that was resident while both were done, in a process of its own, beyond what was resident
  after a short text; and all of it.
- perplexity of the continuation, over all rounds.

What each does:

- `full`: DynamicCache with SDPA; also in the environment of kvpress, which tells apart what its older transformers
  does.
- `kvpress`: ObservedAttentionPress: the prompt attends in full and is then cut to k = budget × context entries by
  their mean attention; afterwards the cache grows. A DecodingPress brings it back to k after every so many tokens,
  by the attention of the latest query over an entry's age. Both need transformers' eager attention, which makes
  T × T maps.
- `h2o`: k entries at most, half of them recent, the rest by their summed attention; each new token takes the place
  of another. `prefill=evict` keeps the cap inside the prompt too, which is a harder task than any other row has;
  `prefill=full` reads the prompt in full first, as kvpress does.

Table, chart and a result that `h2o_lab.results.load` reads. Linux or macOS.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from charts import save
from environments import Worker, environment_python, requirements
from models import console, median_ratio, record
from peers_chart import draw
from rich.table import Table

from h2o_lab.config import DataConfig
from h2o_lab.data.texts import load_texts
from h2o_lab.errors import UserError
from h2o_lab.models.smollm2 import smollm2_folder
from h2o_lab.policies import Budget

PROGRAMS = Path(__file__).resolve().parent / "contenders"
WARM_UP = {"passage": 0, "prompt_tokens": 64, "tokens": 8, "k": 16}
"""Loads and compiles what is needed, without the memory that a long prompt takes."""
MIB = 2**20


@dataclass(frozen=True)
class Peer:
    """A contender: its environment, its program in `contenders/`, and the program's options."""

    environment: str
    program: str
    options: dict[str, Any]


PEERS = {
    "full": Peer("transformers", "full.py", {}),
    "full, transformers of kvpress": Peer("kvpress", "full.py", {}),
    "kvpress, prompt only": Peer("kvpress", "kvpress_press.py", {"interval": None}),
    "kvpress, every 32 tokens": Peer("kvpress", "kvpress_press.py", {"interval": 32}),
    "kvpress, every token": Peer("kvpress", "kvpress_press.py", {"interval": 1}),
    "h2o, prefill=full": Peer("h2o_lab", "h2o.py", {"prefill": "full"}),
    "h2o, prefill=evict": Peer("h2o_lab", "h2o.py", {"prefill": "evict"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, nargs="+", default=[1024, 4096], help="tokens of the prompt")
    parser.add_argument("--continuation", type=int, default=128, help="tokens that follow it")
    parser.add_argument("--budget", type=float, default=0.2, help="entries kept, as a share of the prompt")
    parser.add_argument("--repeats", type=int, default=5, help="rounds, each with another passage")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--chart", default="figures/peers.png")
    parser.add_argument("--results-dir", default="results")
    args = parser.parse_args()
    if min(args.context) < WARM_UP["prompt_tokens"] or args.continuation < 2 or args.repeats < 1:
        parser.error("--context must be 64 or more, --continuation 2 or more, --repeats 1 or more")
    try:
        rows = compare(args)
    except UserError as error:
        raise SystemExit(str(error)) from error
    show(rows, args)
    save(draw(rows), args.chart)
    ratios = {
        f"{name} at {row['context']}: {row['contender']}": row[name]
        for row in rows
        for name in ("decode_over_full", "prefill_over_full")
    }
    record(args, "peers", ratios, rows)


def compare(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each context and contender.

    Raises:
        UserError: an argument, an environment, the model, the text or a contender fails.
    """
    budget = Budget(fraction=args.budget)
    model = smollm2_folder()
    tokens = novel(model)
    with console.status("making environments, which takes minutes the first time"):
        pythons = {name: environment_python(name, wanted) for name, wanted in requirements().items()}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="h2o_lab_peers_") as temporary, ExitStack() as stack:

        def start(name: str) -> Worker:
            peer = PEERS[name]
            options = {"model": str(model), "threads": args.threads} | peer.options
            program, errors = PROGRAMS / peer.program, Path(temporary) / f"{name}.txt"
            return Worker(name, pythons[peer.environment], program, options, errors)

        files = {context: Path(temporary) / f"passages_{context}.json" for context in args.context}
        for context, file in files.items():
            file.write_text(
                json.dumps(passages(tokens, context, args.continuation, args.repeats)), encoding="utf-8"
            )
        commands = {
            context: {
                "passages": str(file),
                "prompt_tokens": None,
                "tokens": args.continuation,
                "k": budget.entries(context, context),
            }
            for context, file in files.items()
        }
        memory = {}
        for name in PEERS:
            for context, command in commands.items():
                with console.status(f"memory of {name} at {context} tokens"):
                    memory[name, context] = memory_of(start(name), command)
        workers = {name: start(name) for name in PEERS}
        for worker in workers.values():
            stack.callback(worker.close)
        for context, command in commands.items():
            answers = take_turns(workers, command, args.repeats)
            for name in PEERS:
                row = {"contender": name, "context": context, "k": command["k"]} | memory[name, context]
                row |= summary(answers[name], answers["full"])
                rows.append(row | {"versions": workers[name].versions, "rounds": answers[name]})
    return rows


def novel(model: Path) -> list[int]:
    """The tokens of the first packaged book.

    Raises:
        UserError: the books cannot be had.
    """
    from transformers import AutoTokenizer

    texts, _ = load_texts("pg19", DataConfig(source="packaged"))
    return AutoTokenizer.from_pretrained(model, local_files_only=True)(texts[0].text).input_ids


def passages(tokens: list[int], context: int, continuation: int, count: int) -> list[dict[str, list[int]]]:
    """Prompts and what follows them, at equal distances in a text.

    Raises:
        UserError: the text is too short.
    """
    length = context + continuation
    if length * (count + 1) > len(tokens):
        raise UserError(
            f"--context {context} with --repeats {count} needs {length * (count + 1)} tokens of text, and there "
            f"are {len(tokens)}: use a shorter context or fewer repeats."
        )
    starts = [(i + 1) * len(tokens) // (count + 1) for i in range(count)]
    return [{"prompt": tokens[s : s + context], "continuation": tokens[s + context : s + length]} for s in starts]


def memory_of(worker: Worker, command: dict[str, Any]) -> dict[str, int]:
    """Bytes that a fresh process had resident at most while it answered, in all and beyond those before."""
    worker.ask(command | WARM_UP)
    answer = worker.ask(command | {"passage": 0})
    worker.close()
    peak = answer["resident_peak"]
    return {"peak_bytes": peak, "peak_bytes_beyond_model": peak - answer["resident_before"]}


def take_turns(
    workers: dict[str, Worker], command: dict[str, Any], repeats: int
) -> dict[str, list[dict[str, Any]]]:
    """What each answered in each round, A B C A B C, after a prompt of the same length each."""
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in workers}
    for name, worker in workers.items():
        with console.status(f"{len(workers)} contenders warm up: {name}"):
            worker.ask(command | WARM_UP)
            worker.ask(command | {"passage": 0, "tokens": WARM_UP["tokens"]})
    for i in range(repeats):
        for name, worker in workers.items():
            with console.status(f"k = {command['k']}, round {i + 1} of {repeats}: {name}"):
                answers[name].append(worker.ask(command | {"passage": i}))
    return answers


def summary(answers: list[dict[str, Any]], full: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds, medians of the ratios to the full cache, and the perplexity of all of them."""

    def seconds(of: list[dict[str, Any]], part: str) -> list[float]:
        return [answer[f"{part}_seconds"] for answer in of]

    decoding = seconds(answers, "decode")
    return {
        "prefill_seconds": statistics.median(seconds(answers, "prefill")),
        "prefill_over_full": median_ratio(seconds(answers, "prefill"), seconds(full, "prefill")),
        "decode_tokens_per_second": answers[0]["decoded"] / statistics.median(decoding),
        "decode_over_full": median_ratio(seconds(full, "decode"), decoding),
        "kv_bytes_prompt": answers[0]["kv_bytes_prompt"],
        "kv_bytes_end": answers[0]["kv_bytes_end"],
        "perplexity": math.exp(sum(a["nats"] for a in answers) / sum(a["scored"] for a in answers)),
    }


def show(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Print the table: times with their ratio to the full cache, memory in MiB."""
    table = Table(
        title=f"SmolLM2-135M, budget {args.budget:g}, {args.threads} threads, float32, {args.repeats} rounds"
    )
    table.add_column("context", justify="right")
    table.add_column("contender")
    for column in ("prefill, s", "decode, tok/s", "KV, MiB", "at the end", "peak, MiB", "with model", "perplexity"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            str(row["context"]),
            row["contender"],
            f"{row['prefill_seconds']:.2f} ({row['prefill_over_full']:.2f})",
            f"{row['decode_tokens_per_second']:.1f} ({row['decode_over_full']:.2f})",
            *(
                f"{row[name] / MIB:.1f}"
                for name in ("kv_bytes_prompt", "kv_bytes_end", "peak_bytes_beyond_model", "peak_bytes")
            ),
            f"{row['perplexity']:.2f}",
            end_section=row["contender"] == list(PEERS)[-1],
        )
    console.print(table)
    console.print("in brackets: as a multiple of full, the median over the rounds")


if __name__ == "__main__":
    main()
