"""A folder with small models, rows, a text and tasks of one's own, and overrides on it."""

import json
from pathlib import Path

from tests.support.models import character_tokenizer, random_model
from tests.support.own_tasks import KINDS, own_task

WORDS = ("the river runs to the sea", "and the road is long", "while a bird sits in", "the old tree again")


def furnish(folder: Path) -> Path:
    """Put models `llama` and `opt`, rows in `data`, a text and tasks of one's own into a folder."""
    for family in ("llama", "opt"):
        model = random_model(family)
        model.generation_config.eos_token_id = None
        model.save_pretrained(folder / family)
        character_tokenizer().save_pretrained(folder / family)
    goals = [" ".join([*WORDS, *WORDS])[i % 19 : i % 19 + 12 + 5 * (i % 7)] for i in range(24)]
    rows = {
        "piqa": [
            {"goal": goal, "sol1": goal[:4], "sol2": f"{goal[:4]} {i}", "label": i % 2}
            for i, goal in enumerate(goals)
        ],
        "winogrande": [
            {"sentence": f"{goal} as _ was rich.", "option1": "Ann", "option2": "Robert", "answer": "1"}
            for goal in goals
        ],
        "xsum": [{"document": goal, "summary": goal[:9], "id": str(i)} for i, goal in enumerate(goals)],
    }
    for name, part in rows.items():
        (folder / "data" / name).mkdir(parents=True)
        lines = "".join(json.dumps(row) + "\n" for row in part)
        (folder / "data" / name / "validation.jsonl").write_text(lines)
    (folder / "book.txt").write_text(" ".join(WORDS * 6))
    for kind, fields in KINDS.items():
        (folder / kind).mkdir()
        own_task(folder / kind, **fields)
    return folder


def small(folder: Path, *overrides: str) -> list[str]:
    """Overrides on the small model and data of a furnished folder; `{}` in one stands for the folder."""
    defaults = {
        "model": "local",
        "model.path": f"{folder}/llama",
        "data": "folder",
        "data.dir": f"{folder}/data",
        "task.limit": "8",
        "tracker": "none",
        "results_dir": f"{folder}/results",
    }
    said = {override.partition("=")[0] for override in overrides}
    words = [override.replace("{}", str(folder)) for override in overrides]
    return [*words, *(f"{key}={value}" for key, value in defaults.items() if key not in said)]
