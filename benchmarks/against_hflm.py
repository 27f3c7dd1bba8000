"""The full cache against lm-eval's own HFLM: the same log-likelihoods, and how much faster.

    python benchmarks/against_hflm.py --questions 50

Both answer the same PIQA questions, interleaved; HFLM with batch sizes 1 and 8.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import redirect_stderr
from io import StringIO

import torch
from lm_eval.evaluator import evaluate as lm_evaluate
from lm_eval.models.huggingface import HFLM
from models import console, interleaved, median_ratio, packaged_model
from rich.table import Table

from h2o_lab.config import DataConfig, HarnessConfig
from h2o_lab.policies import H2O, Budget, Full
from h2o_lab.tasks.harness import evaluate, load
from h2o_lab.tasks.scoring import Scorer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    loaded = packaged_model(args.threads)
    task = HarnessConfig(name="piqa", limit=args.questions)
    data = load(task, DataConfig(source="packaged"))
    results: dict[str, tuple[dict[str, float], list[float]]] = {}

    def ours(name: str, scorer: Scorer) -> None:
        found = evaluate(data, task, scorer, loaded.tokenizer)
        logprobs = [choice["logprob"] for sample in found.samples for choice in sample["choices"]]
        results[name] = found.metrics, logprobs

    def hflm(name: str, batch_size: int) -> None:
        lm = HFLM(pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=batch_size)
        data.task.set_fewshot_seed(seed=task.fewshot_seed)
        chosen = {"tasks": {"piqa": data.task}, "groups": {}, "group_map": {}}
        with redirect_stderr(StringIO()):
            found = lm_evaluate(lm, chosen, limit=task.limit, bootstrap_iters=0)
        records = sorted(found["samples"]["piqa"], key=lambda record: record["doc_id"])
        metrics = {key: found["results"]["piqa"][f"{key},none"] for key in ("acc", "acc_norm")}
        results[name] = metrics, [answer[0] for record in records for answer in record["filtered_resps"]]

    seconds = interleaved(
        {
            "full": lambda: ours("full", Scorer(loaded.model, Full(), None)),
            "h2o b=0.2": lambda: ours("h2o b=0.2", Scorer(loaded.model, H2O(), Budget(fraction=0.2))),
            "HFLM batch 1": lambda: hflm("HFLM batch 1", 1),
            "HFLM batch 8": lambda: hflm("HFLM batch 8", 8),
        },
        args.repeats,
    )
    table = Table(title=f"{args.questions} PIQA questions, {task.num_fewshot}-shot, {args.threads} threads")
    for column in ("who", "acc", "acc_norm", "seconds", "speed-up over HFLM 1 / 8", "largest difference to HFLM 1"):
        table.add_column(column, justify="left" if column == "who" else "right")
    for name, (metrics, logprobs) in results.items():
        difference = max(abs(a - b) for a, b in zip(logprobs, results["HFLM batch 1"][1], strict=True))
        speed = [median_ratio(seconds[f"HFLM batch {n}"], seconds[name]) for n in (1, 8)]
        table.add_row(
            name,
            f"{metrics['acc']:.3f}",
            f"{metrics['acc_norm']:.3f}",
            f"{statistics.median(seconds[name]):.1f}",
            f"{speed[0]:.2f} / {speed[1]:.2f}",
            f"{difference:.1e}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
