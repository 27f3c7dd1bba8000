"""What was recorded, as tables: one row per layer and head, and so on; written as Parquet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from h2o_lab.errors import UserError
from h2o_lab.results.store import RESULT, STATS
from h2o_lab.stats.power_law import fit
from h2o_lab.stats.recorder import BINS, SEEN, SHARES, Recorder
from h2o_lab.stats.running import Running
from h2o_lab.stats.words import KINDS

if TYPE_CHECKING:
    from pandas import DataFrame

TABLES = {
    "heads": "layer, head: sparsity, Gini coefficient and mass of the top tokens, with standard errors over texts",
    "layers": "layer: overlap of heavy hitters between heads and between texts, and the power-law fit",
    "curves": "layer, head, share of tokens: the share of all attention that the most attended ones have",
    "times": "layer, head, at (share of the text): what the cache holds, and how attention spreads over it",
    "persistence": "layer, since, at: heavy hitters at `since` that are still among the heavy ones at `at`",
    "pairs": "layer, other: overlap of the heavy hitters of two layers",
    "kinds": "layer, kind of token: how many there are, the attention they get, how many are heavy",
    "places": "layer, place (share of the text): the same",
    "tokens": "token of the vocabulary, first tokens of texts left out: how often, its attention, its neighbours",
    "values": "layer, value: a uniform sample of accumulated attention, relative to the text's mean",
}


def tables(recorder: Recorder) -> dict[str, DataFrame]:
    """All of `TABLES`; fits the power laws.

    Raises:
        UserError: nothing was recorded.
    """
    from pandas import DataFrame

    if not recorder.texts:
        raise UserError(
            f"stats=attention has recorded nothing: all {recorder.skipped} texts have fewer tokens than "
            f"stats.checkpoints={recorder.cfg.checkpoints}."
        )
    assert recorder.values is not None
    at = np.arange(1, recorder.cfg.checkpoints + 1) / recorder.cfg.checkpoints
    samples = recorder.values.values
    layers = _long(recorder.layers, ["layer"])
    fits = DataFrame([fit(values) for values in samples])
    persistence = _long({"overlap": recorder.persistence}, ["layer", "since", "at"], errors=False)
    for name in ("since", "at"):
        persistence[name] = at[persistence[name]]
    times = _long(recorder.times, ["layer", "head", "at"])
    times["at"] = at[times["at"]]
    curves = _long({"mass": recorder.curves}, ["layer", "head", "share"])
    curves["share"] = SHARES.numpy()[curves["share"]]
    values = DataFrame({"layer": np.arange(len(samples)).repeat(samples.shape[1]), "value": samples.ravel()})
    return {
        "heads": _long(recorder.heads, ["layer", "head"]),
        "layers": layers.join(fits),
        "curves": curves,
        "times": times,
        "persistence": persistence.dropna(ignore_index=True),
        "pairs": _long({"overlap": recorder.pairs}, ["layer", "other"], errors=False),
        "kinds": _parts(recorder.kinds, "kind", np.array(KINDS)),
        "places": _parts(recorder.places, "place", (np.arange(BINS) + 0.5) / BINS),
        "tokens": _vocabulary(recorder),
        "values": values,
    }


def headline(recorder: Recorder, found: dict[str, DataFrame]) -> dict[str, Any]:
    """The numbers of a result record: what was recorded, and means over layers and heads."""
    heads, layers, times = found["heads"], found["layers"], found["times"]
    means = {name: float(heads[name].mean()) for name in ("sparsity", "sparsity_of_square", "gini")}
    masses = [name for name in map(str, heads) if name.startswith("mass") and "_std" not in name]
    means |= {name: float(heads[name].mean()) for name in masses}
    middle = times[times["at"] < 1]
    told: dict[str, Any] = (
        recorder.about
        | means
        | {
            "heavy_share": recorder.cfg.heavy_share,
            "overlap_with_final": float(middle["overlap_with_final"].mean()),
            "retained": float(times["retained"].mean()),
            "heads_overlap": float(layers["heads_overlap"].mean()),
            "verdicts": {str(name): int(count) for name, count in layers["verdict"].value_counts().items()},
        }
    )
    if "alpha" in layers:
        told["alpha"] = float(layers["alpha"].median())
    return told


def files(found: dict[str, DataFrame]) -> dict[str, bytes]:
    """The tables as Parquet, by file name."""
    return {f"{name}.parquet": table.to_parquet(index=False) for name, table in found.items()}


def has_tables(folder: Path) -> bool:
    """Whether a result folder has all tables, or says in its record why it has none."""
    if all((folder / STATS / f"{name}.parquet").is_file() for name in TABLES):
        return True
    record = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    return "error" in (record.get("stats") or {})


def read(folder: Path | str, name: str) -> DataFrame:
    """One of `TABLES` of a result folder.

    Raises:
        UserError: there is no such table.
    """
    from pandas import read_parquet

    if name not in TABLES:
        raise UserError(f"{name} is no table of statistics: there are {', '.join(TABLES)}.")
    file = Path(folder) / STATS / f"{name}.parquet"
    if not file.is_file():
        if file.parent.is_dir():
            raise UserError(f"{file} is missing: run the cell again, its tables are then written anew.")
        raise UserError(f"{folder} has no recorded attention: run it with stats=attention.")
    try:
        return read_parquet(file)
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {' '.join(str(error).split())}") from error


def _long(columns: dict[str, Running], names: list[str], errors: bool = True) -> DataFrame:
    """Arrays of one shape as columns; their indices, by name, as columns too."""
    from pandas import DataFrame

    shape = next(iter(columns.values())).mean.shape
    index = np.indices(shape).reshape(len(shape), -1)
    table: dict[str, Any] = dict(zip(names, index, strict=True))
    for name, found in columns.items():
        table[name] = found.mean.ravel()
        if errors:
            table[f"{name}_stderr"] = found.stderr.ravel()
    return DataFrame(table)


def _parts(found: Running, name: str, labels: np.ndarray) -> DataFrame:
    """[L, 3, parts]: tokens a text, and what each of them gets in the mean, relative to all tokens."""
    from pandas import DataFrame

    layers, _, parts = found.mean.shape
    layer, part = np.indices((layers, parts)).reshape(2, -1)
    tokens, attention, heavy = found.mean.transpose(1, 0, 2).reshape(3, -1)
    share = np.maximum(tokens, 1e-12)
    return DataFrame(
        {
            "layer": layer,
            name: labels[part],
            "tokens": tokens,
            "attention": attention / share,
            "heavy": heavy / share,
        }
    )[tokens > 0].reset_index(drop=True)


def _vocabulary(recorder: Recorder) -> DataFrame:
    """`attention` (relative to all tokens), `per_query` (relative to an equal share of what each query sees) and
    `heavy` are means over occurrences, layers and heads; `neighbours` is the sum over occurrences."""
    from pandas import DataFrame

    (ids,) = recorder.vocabulary[:, 0].nonzero()
    sums = dict(zip(SEEN, recorder.vocabulary[ids].T, strict=True))
    count, followed = sums["tokens"], sums["followed"]
    return DataFrame(
        {
            "token": ids,
            "text": [recorder.string(token) for token in ids.tolist()],
            "count": count.astype(np.int64),
            "attention": sums["attention"] / count,
            "per_query": np.divide(sums["per_query"], followed, where=followed > 0, out=np.full(len(ids), np.nan)),
            "heavy": sums["heavy"] / count,
            "neighbours": sums["neighbours"].astype(np.int64),
        }
    )
