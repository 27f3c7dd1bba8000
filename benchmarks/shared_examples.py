"""Questions per second against lm-eval's HFLM, with examples drawn for each question and with the same for all.

    python benchmarks/shared_examples.py --data-dir FOLDER --questions 12 --shots 5

FOLDER holds `<task>/<split>.jsonl`. All answer the same questions with the same prompts, interleaved; speed-ups are
medians over the rounds of seconds of HFLM / seconds; `off by` is the largest difference of the full cache's
log-likelihoods to HFLM's.
"""

from __future__ import annotations

import argparse
import os
import statistics
from contextlib import redirect_stderr
from functools import partial
from io import StringIO

import torch
from lm_eval.evaluator import evaluate as lm_evaluate
from lm_eval.models.huggingface import HFLM
from models import console, interleaved, median_ratio, packaged_model
from rich.table import Table

from h2o_lab.config import DataConfig, HarnessConfig
from h2o_lab.models import LoadedModel
from h2o_lab.policies import H2O, Budget, Full, Policy
from h2o_lab.tasks.harness import TaskData, evaluate, load
from h2o_lab.tasks.scoring import Scorer

THEIRS = "HFLM"
OURS: dict[str, tuple[Policy, Budget | None]] = {
    "full": (Full(), None),
    "h2o b=0.2": (H2O(), Budget(fraction=0.2)),
    "h2o k=64": (H2O(), Budget(tokens=64)),
}


class Run:
    """One task with one way to choose examples, and what came out by who answered.

    Attributes:
        logprobs: of every choice.
        tokens: fed to the model; not known of HFLM.
    """

    def __init__(self, task: HarnessConfig, data: TaskData, loaded: LoadedModel, batch: int) -> None:
        self.task, self.data, self.loaded, self.batch = task, data, loaded, batch
        self.logprobs: dict[str, list[float]] = {}
        self.tokens: dict[str, int] = {}

    def ours(self, name: str) -> None:
        scorer = Scorer(self.loaded.model, *OURS[name], batch_tokens=self.task.batch_tokens)
        found = evaluate(self.data, self.task, scorer, self.loaded.tokenizer)
        self.logprobs[name] = [choice["logprob"] for sample in found.samples for choice in sample["choices"]]
        self.tokens[name] = found.tokens_computed

    def theirs(self) -> None:
        lm = HFLM(pretrained=self.loaded.model, tokenizer=self.loaded.tokenizer, batch_size=self.batch)
        self.data.task.set_config(key="num_fewshot", value=self.task.num_fewshot)
        self.data.task.set_fewshot_seed(seed=self.task.fewshot_seed)
        chosen = {"tasks": {self.task.name: self.data.task}, "groups": {}, "group_map": {}}
        with redirect_stderr(StringIO()):
            found = lm_evaluate(lm, chosen, limit=self.task.limit, bootstrap_iters=0)
        records = sorted(found["samples"][self.task.name], key=lambda record: record["doc_id"])
        self.logprobs[THEIRS] = [answer[0] for record in records for answer in record["filtered_resps"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--tasks", nargs="+", default=["piqa", "openbookqa", "mathqa"])
    parser.add_argument("--questions", type=int, default=12)
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--hflm-batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    loaded = packaged_model(args.threads)
    table = Table(
        title=f"{args.questions} questions, {args.shots}-shot, {args.threads} threads, HFLM batch {args.hflm_batch}"
    )
    for column in ("task", "examples", "who", "questions/s", "speed-up", "tokens fed", "off by"):
        table.add_column(column, justify="left" if column in ("task", "examples", "who") else "right")
    for name in args.tasks:
        runs = {way: run_of(name, way, args, loaded) for way in ("sampled", "fixed")}
        for way in runs:
            interleaved(candidates({way: run_of(name, way, args, loaded, questions=2)}), 0)
        seconds = interleaved(candidates(runs), args.repeats, warm_up=False)
        for way, run in runs.items():
            table.add_section()
            for who in (THEIRS, *OURS):
                add(table, run, who, seconds[f"{way} {who}"], seconds[f"{way} {THEIRS}"])
    console.print(table)
    load = ", ".join(f"{number:.1f}" for number in os.getloadavg())
    console.print(f"load of the machine's {os.cpu_count()} cores over 1, 5 and 15 minutes: {load}", highlight=False)


def run_of(name: str, way: str, args: argparse.Namespace, loaded: LoadedModel, questions: int | None = None) -> Run:
    """The prompts of a task, ready to be asked."""
    task = HarnessConfig(name=name, limit=questions or args.questions, num_fewshot=args.shots, fewshot=way)
    return Run(task, load(task, DataConfig(source="folder", dir=args.data_dir)), loaded, args.hflm_batch)


def candidates(runs: dict[str, Run]) -> dict[str, partial[None]]:
    """Whoever answers, under either way to choose examples."""
    found = {}
    for way, run in runs.items():
        found[f"{way} {THEIRS}"] = partial(run.theirs)
        found |= {f"{way} {name}": partial(run.ours, name) for name in OURS}
    return found


def add(table: Table, run: Run, who: str, seconds: list[float], theirs: list[float]) -> None:
    """A line of the table."""
    pairs = zip(run.logprobs[who], run.logprobs[THEIRS], strict=True)
    table.add_row(
        run.task.name,
        run.task.fewshot,
        who,
        f"{run.task.limit / statistics.median(seconds):.2f}",
        f"{median_ratio(theirs, seconds):.2f}",
        str(run.tokens.get(who, "–")),
        f"{max(abs(a - b) for a, b in pairs):.1e}" if who == "full" else "–",
    )


if __name__ == "__main__":
    main()
