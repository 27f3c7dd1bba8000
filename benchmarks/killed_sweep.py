"""A sweep of 24 cells, killed at random moments and restarted until it is done, against one that is left alone.

    python benchmarks/killed_sweep.py --models FOLDER FOLDER --data-dir FOLDER --kills 20

Checked: the records and samples are those of the undisturbed sweep; what was finished or noted before a kill is
never computed again; and nothing on the disk is ever half a record. Ends with code 1 where one of these fails.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from h2o_lab import log
from h2o_lab.results import load, load_samples

logger = logging.getLogger("h2o_lab.killed_sweep")
VOLATILE = ("seconds", "started", "finished", "path", "tokens_per_second", "peak_memory", "resumed", "overrides")
"""Beginnings of columns that may differ between two runs of a cell."""


def main() -> None:
    """Kill, restart, compare."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--models", nargs=2, required=True, help="two folders of save_pretrained")
    made.add_argument("--data-dir", required=True, help="a folder that holds piqa/<split>.jsonl")
    made.add_argument("--limit", type=int, default=12)
    made.add_argument("--kills", type=int, default=20)
    made.add_argument("--spread", type=float, default=4.0, help="seconds after work begins, at most, to the kill")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--out", default="results/killed", help="a new folder")
    args = made.parse_args()
    log.set_up()
    out = Path(args.out)
    if out.exists():
        sys.exit(f"{out} exists: name a new folder.")
    sweep = [
        *[sys.executable, "-m", "h2o_lab.run", "-m", "policy=full,h2o,local", "budget=0.2,0.4,0.6,0.8"],
        *[f"model.path={','.join(args.models)}", "model=local", "data=folder", f"data.dir={args.data_dir}"],
        *[f"task.limit={args.limit}", "task.num_fewshot=2", "task.batch_tokens=512", "tracker=none"],
    ]
    subprocess.run([*sweep, f"results_dir={out / 'undisturbed'}"], check=True, stdout=subprocess.DEVNULL)

    draw = random.Random(args.seed)
    killed, faults = out / "killed", []
    before = Progress(killed)
    kills = 0
    while True:
        command = [*sweep, f"results_dir={killed}"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if kills < args.kills and wait_for_work(process, killed, draw):
            time.sleep(draw.uniform(0, args.spread))
            process.kill()
            kills += 1
        _, said = process.communicate()
        after = Progress(killed)
        faults += after.faults + before.lost(after)
        logger.info(
            "%d kills, %d cells finished, %d batches noted", kills, len(after.finished), sum(after.noted.values())
        )
        before = after
        if process.returncode == 0 and kills >= args.kills:
            break
        if process.returncode not in (0, -9):
            faults.append(f"exit code {process.returncode}: {said.decode()[-500:]}")
            break
    faults += differences(out / "undisturbed", killed)
    logger.info("%d kills; %s", kills, "the sweeps agree" if not faults else "; ".join(faults))
    sys.exit(1 if faults else 0)


def wait_for_work(process: subprocess.Popen[bytes], root: Path, draw: random.Random) -> bool:
    """Until the sweep has opened a cell or noted a batch, three times out of four; False where it ended before."""
    before = footprint(root)
    patient = draw.random() < 0.75
    while process.poll() is None:
        if not patient or footprint(root) != before:
            return True
        time.sleep(0.02)
    return False


def footprint(root: Path) -> list[tuple[str, int]]:
    """What the cells have on the disk."""
    return sorted((str(file), file.stat().st_size) for file in root.glob(".cells/*/*.jsonl"))


class Progress:
    """What lies on the disk: finished cells and when they began, batches noted, records that cannot be read."""

    def __init__(self, root: Path) -> None:
        self.finished: dict[str, str] = {}
        self.resumed: dict[str, int] = {}
        self.faults: list[str] = []
        for file in root.rglob("result.json"):
            try:
                record = json.loads(file.read_text(encoding="utf-8"))
            except ValueError:
                self.faults.append(f"{file} is no whole record")
                continue
            if record["status"] != "finished":
                self.faults.append(f"{file} failed: {record.get('error')}")
            elif "reused_from" not in record:
                if record["cell"] in self.finished:
                    self.faults.append(f"{record['cell']} was finished twice")
                self.finished[record["cell"]] = record["started"]
                self.resumed[record["cell"]] = record["resumed_batches"]
        # lines that are whole; what follows the last of them was being written
        journals = root.glob(".cells/*/journal.jsonl")
        self.noted = {file.parent.name: file.read_bytes().count(b"\n") for file in journals}

    def lost(self, later: Progress) -> list[str]:
        """What was there and is not any more, or was computed again."""
        faults = [
            f"{cell} was computed again" for cell, at in self.finished.items() if later.finished.get(cell) != at
        ]
        for cell, lines in self.noted.items():
            if cell in self.finished:
                continue  # what is left of a journal that was not cleared in time
            kept = later.resumed[cell] if cell in later.finished else later.noted.get(cell, 0)
            if kept < lines:
                faults.append(f"{cell} had {lines} batches and went on from {kept}")
        return faults


def differences(one: Path, other: Path) -> list[str]:
    """Cells and samples that are not the same in two folders of results."""
    frames = [load(folder).set_index("cell").sort_index() for folder in (one, other)]
    columns = [name for name in frames[0].columns if not name.startswith((*VOLATILE, "environment", "git_"))]
    faults = []
    if list(frames[0].index) != list(frames[1].index):
        return [f"{len(frames[0])} and {len(frames[1])} cells"]
    for name in columns:
        # as JSON: pandas says NaN or None for what is absent, as the rest of a column wants it
        one_column, other_column = (json.loads(frame[name].to_json(orient="split"))["data"] for frame in frames)
        unequal = sum(a != b for a, b in zip(one_column, other_column, strict=True))
        if unequal:
            faults.append(f"{name} differs in {unequal} cells")
    samples = [load_samples(folder).drop(columns="path") for folder in (one, other)]
    texts = [sorted(rows.to_json(orient="records", lines=True).splitlines()) for rows in samples]
    if texts[0] != texts[1]:
        faults.append("samples differ")
    return faults


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    main()
