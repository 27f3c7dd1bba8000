"""Rows out of `<data.dir>/<dataset>/<split>.jsonl`."""

from pathlib import Path
from typing import Any

from h2o_lab.data.jsonl import read_jsonl
from h2o_lab.data.schema import DATASETS, Dataset, checked
from h2o_lab.data.sources import others
from h2o_lab.errors import UserError

SPLITS = ("train", "validation", "test")


def read_folder(dataset: str, root: str | None) -> tuple[dict[str, list[dict[str, Any]]], str]:
    """The splits of `dataset` below the folder `root`, and a line on where they are from.

    A split is `<split>.jsonl`, or else the largest `<split>_*.jsonl`, such as WinoGrande's `train_m.jsonl`.
    Datasets of `DATASETS` are converted for lm-eval's task of that name; any other's rows stay as they are.

    Raises:
        UserError: no `root`, no such folder or split, or a file with a broken row.
    """
    if not root:
        raise UserError("data=folder needs data.dir=FOLDER, which holds <dataset>/<split>.jsonl.")
    if not Path(root).expanduser().is_dir():
        raise UserError(f"data.dir={root} is not a folder: it has to hold <dataset>/<split>.jsonl.")
    spec = DATASETS.get(dataset, Dataset(SPLITS, {}, lambda row: row))
    folder = Path(root).expanduser() / (spec.folder or dataset)
    if not folder.is_dir():
        raise UserError(
            f"data.dir={root} has no folder {folder.name}: put the rows of {dataset} there, or use "
            f"{others(dataset, 'folder')}."
        )
    files = {split: file for split in spec.splits if (file := _split_file(folder, split))}
    if not files:
        wanted = ", ".join(f"{split}.jsonl" for split in spec.splits)
        raise UserError(f"{folder} has no rows for {dataset}: allowed are {wanted}.")

    def convert(row: Any) -> dict[str, Any]:
        known = checked(row, spec.fields)
        return spec.convert(known) if spec.fields else row

    splits = {split: read_jsonl(file, convert) for split, file in files.items()}
    return splits, f"folder {root}: {', '.join(f'{folder.name}/{file.name}' for file in files.values())}"


def _split_file(folder: Path, split: str) -> Path | None:
    exact = folder / f"{split}.jsonl"
    if exact.is_file():
        return exact
    return max(sorted(folder.glob(f"{split}_*.jsonl")), key=lambda file: file.stat().st_size, default=None)
