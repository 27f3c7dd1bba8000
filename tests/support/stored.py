"""Results as the runner writes them, in short."""

from io import StringIO

from rich.console import Console

from h2o_lab.results import (
    open_result,
    sweep_table,
)


def cell(policy="h2o", budget=0.2, acc=0.66, **other):
    """A result as the runner writes it, in short."""
    return {
        **{
            "model": "smollm2_135m",
            "task": "piqa",
            "policy": policy,
            "budget": budget,
            "budget_tokens": None,
        },
        **{"seed": 0, "metrics": {"acc": acc, "acc_stderr": 0.05}, "main_metric": "acc", "samples": 64},
        **{"k": {"mean": 71.2, "min": 40, "max": 130, "cut_samples": 0}},
        **{"kv_bytes": {"resident_mean": 3 * 2**20}, "tokens_per_second": 1234.5},
        **{"environment": {"git": {"commit": "abc", "dirty": False}}},
        **{"overrides": [f"policy={policy}", f"budget={budget}", "task.limit=64"]},
        **other,
    }


def store(folder, **changes):
    open_result(folder).finish(cell(**changes))
    return folder


def rendered(frame, width=100):
    console = Console(file=StringIO(), width=width)
    console.print(sweep_table(frame))
    return console.file.getvalue()


def failure(error):
    """`error` with the traceback that raising it gives."""
    try:
        raise error
    except type(error) as caught:
        return caught
