"""Questions per second against lm-eval's HFLM, with examples drawn for each question and with the same for all.

    python benchmarks/against_hflm.py --questions 12 --shots 5
    python benchmarks/against_hflm.py --data-dir FOLDER --tasks piqa openbookqa mathqa

FOLDER holds `<task>/<split>.jsonl`; without one, questions are the packaged ones. All answer the same with
the same prompts, interleaved; speed-ups are medians over the rounds of seconds of HFLM / seconds; `off by` is the
largest difference of the full cache's log-likelihoods to HFLM's.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from typing import Any

import torch
from charts import dots, save
from lm_eval.evaluator import evaluate as lm_evaluate
from lm_eval.models.huggingface import HFLM
from models import console, interleaved, median_ratio, packaged_model, record
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

    def off_by(self) -> float:
        """Largest difference of the full cache's log-likelihoods to HFLM's."""
        return max(abs(a - b) for a, b in zip(self.logprobs["full"], self.logprobs[THEIRS], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir")
    parser.add_argument("--tasks", nargs="+", default=["piqa", "openbookqa"])
    parser.add_argument("--questions", type=int, default=12)
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--hflm-batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--chart", default="figures/against_hflm.png")
    parser.add_argument("--results-dir", default="results")
    args = parser.parse_args()
    loaded = packaged_model(args.threads)
    rows = [row for name in args.tasks for row in measure(name, args, loaded)]
    table = Table(
        title=f"{args.questions} questions, {args.shots}-shot, {args.threads} threads, HFLM batch {args.hflm_batch}"
    )
    for column in ("task", "examples", "who", "questions/s", "speed-up", "tokens fed", "off by"):
        table.add_column(column, justify="left" if column in ("task", "examples", "who") else "right")
    for row in rows:
        if row["who"] == THEIRS:
            table.add_section()
        numbers = f"{row['questions_per_second']:.2f}", f"{row['over_hflm']:.2f}", str(row["tokens"] or "–")
        off = f"{row['off_by']:.1e}" if row["off_by"] is not None else "–"
        table.add_row(row["task"], row["examples"], row["who"], *numbers, off)
    console.print(table)
    ours = {", ".join([r["task"], r["examples"], r["who"]]): r["over_hflm"] for r in rows if r["who"] != THEIRS}
    save(dots(list(ours), list(ours.values()), "questions per second / HFLM's", at=1), args.chart)
    record(args, "against_hflm", ours, rows)


def measure(name: str, args: argparse.Namespace, loaded: LoadedModel) -> list[dict[str, Any]]:
    """A row for whoever answers, under either way to choose examples."""
    runs = {way: run_of(name, way, args, loaded) for way in ("sampled", "fixed")}
    for way in runs:
        interleaved(candidates({way: run_of(name, way, args, loaded, questions=2)}), 0)
    seconds = interleaved(candidates(runs), args.repeats, warm_up=False)
    return [
        {
            "task": name,
            "examples": way,
            "who": who,
            "questions_per_second": args.questions / statistics.median(seconds[f"{way} {who}"]),
            "over_hflm": median_ratio(seconds[f"{way} {THEIRS}"], seconds[f"{way} {who}"]),
            "tokens": run.tokens.get(who),
            "off_by": run.off_by() if who == "full" else None,
        }
        for way, run in runs.items()
        for who in (THEIRS, *OURS)
    ]


def run_of(name: str, way: str, args: argparse.Namespace, loaded: LoadedModel, questions: int | None = None) -> Run:
    """The prompts of a task, ready to be asked."""
    task = HarnessConfig(name=name, limit=questions or args.questions, num_fewshot=args.shots, fewshot=way)
    where = DataConfig(source="folder", dir=args.data_dir) if args.data_dir else DataConfig(source="packaged")
    return Run(task, load(task, where), loaded, args.hflm_batch)


def candidates(runs: dict[str, Run]) -> dict[str, partial[None]]:
    """Whoever answers, under either way to choose examples."""
    found = {}
    for way, run in runs.items():
        found[f"{way} {THEIRS}"] = partial(run.theirs)
        found |= {f"{way} {name}": partial(run.ours, name) for name in OURS}
    return found


if __name__ == "__main__":
    main()
