"""The table of a sweep, and what a sweep says when it is over."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf

from h2o_lab.errors import UserError
from h2o_lab.results import (
    load,
    open_result,
    write_table,
)
from h2o_lab.results.callback import SweepSummary
from tests.support.stored import rendered, store


@pytest.fixture
def sweep(tmp_path):
    """Two tasks; `full` ran once per budget; one cell failed; one file is damaged."""
    store(tmp_path / "0", policy="h2o", budget=0.4, acc=0.64)
    store(tmp_path / "1", policy="h2o", budget=0.2, acc=0.61)
    store(tmp_path / "2", policy="full", budget=0.2, acc=0.7)
    store(tmp_path / "3", policy="full", budget=0.4, acc=0.7, tokens_per_second=9.0)
    store(tmp_path / "4", policy="h2o", budget=None, budget_tokens=64, acc=0.5)
    store(
        tmp_path / "5",
        task="xsum",
        main_metric="rouge",
        metrics={"rouge": 0.1},
        kv_bytes={"resident_mean": 512},
    )
    known = {"model": "smollm2_135m", "task": "piqa", "policy": "local", "budget": 0.2}
    open_result(tmp_path / "6").fail(UserError("budget [red]2[/red] is not in (0, 1]."), known)
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "result.json").write_text("{")
    return tmp_path


def test_the_table_shows_every_cell_in_order(sweep):
    lines = [" ".join(line.split()) for line in rendered(load(sweep)).splitlines()]
    body = [line for line in lines if any(word in line for word in ("±", "/", "failed", "rouge", "0.100"))]
    text = "\n".join(body).replace("│", "|").replace(" | ", " ").strip()
    order = [
        "smollm2_135m / piqa",
        "full – 0.700 ± 0.050 3.00 MiB 1,23",
        "h2o 64 tokens 0.500 ± 0.050",
        "h2o 0.2 0.610 ± 0.050",
        "h2o 0.4 0.640 ± 0.050",
        "local 0.2 failed: budget [red]2[/red] is not in",
        "smollm2_135m / xsum",
        "h2o 0.2 0.100 0.5 KiB",
    ]
    places = [text.find(part) for part in order]
    assert -1 not in places, text
    assert places == sorted(places), text
    assert text.count("full") == 1
    assert "unreadable" in "\n".join(lines)


def test_the_table_fits_into_100_columns(sweep):
    assert max(map(len, rendered(load(sweep)).splitlines())) <= 100


def test_overrides_that_tell_cells_apart_are_shown(tmp_path):
    for seed in (0, 1):
        overrides = ["policy=h2o", f"seed={seed}", "task.limit=8", f"tracker.group={seed}"]
        store(tmp_path / str(seed), overrides=overrides)
    text = rendered(load(tmp_path))
    assert "h2o seed=0" in text
    assert "h2o seed=1" in text
    assert "task.limit" not in text
    assert "tracker" not in text


def test_runs_of_full_that_differ_are_both_shown(tmp_path):
    store(tmp_path / "0", policy="full", acc=0.7)
    store(tmp_path / "1", policy="full", acc=0.6)
    assert rendered(load(tmp_path)).count("full") == 2


def test_tables_are_stored_beside_each_other(sweep):
    import pandas as pd

    frame = load(sweep)
    first, second = write_table(frame, sweep), write_table(frame.iloc[:1], sweep)
    assert [path.name for path in (*first, *second)] == ["table.md", "table.csv", "table-2.md", "table-2.csv"]
    markdown = first[0].read_text(encoding="utf-8")
    assert "| smollm2_135m / piqa | h2o | 0.2 | acc | 0.610 ± 0.050 | 3.00 MiB |" in markdown
    assert "failed: budget [red]2[/red]" in markdown
    assert {line.count(" | ") for line in markdown.splitlines()} == {6}
    assert list(pd.read_csv(first[1])["acc"].dropna()) == list(frame["acc"].dropna())
    assert len(pd.read_csv(second[1])) == 1


def sweep_config(folder):
    return OmegaConf.create({"name": "s", "hydra": {"sweep": {"dir": f"{folder}/${{name}}"}}})


def test_the_summary_of_a_sweep_shows_and_stores_its_table(sweep, capsys):
    with pytest.raises(SystemExit, match="1"):  # two cells have no result
        SweepSummary().on_multirun_end(OmegaConf.create({"hydra": {"sweep": {"dir": str(sweep)}}}))
    shown = capsys.readouterr().out
    assert "0.610 ± 0.050" in shown
    assert f"8 cells, 2 without a result. Results: {sweep}" in shown
    assert (sweep / "table.md").is_file()


def test_a_sweep_without_results_says_so_and_no_more(tmp_path, caplog, capsys):
    (tmp_path / "s").mkdir()
    SweepSummary().on_multirun_end(sweep_config(tmp_path))
    assert f"No result.json in or below {tmp_path / 's'}" in caplog.text
    assert capsys.readouterr().out == ""


def test_a_cell_that_could_not_even_open_a_folder_counts_as_failed(tmp_path, caplog):
    (tmp_path / "s").mkdir()
    summary = SweepSummary()
    job = JobReturn(status=JobStatus.COMPLETED)
    job.return_value = None
    summary.on_job_end(sweep_config(tmp_path), job)
    with pytest.raises(SystemExit, match="1"):
        summary.on_multirun_end(sweep_config(tmp_path))
    assert "No result.json" in caplog.text


def test_hydra_calls_the_summary_after_a_real_sweep(tmp_path):
    (tmp_path / "config.yaml").write_text(
        "budget: 0.5\nresults_dir: out\n"
        "hydra:\n  job: {chdir: false}\n  sweep: {dir: '${results_dir}/${now:%H-%M-%S-%f}'}\n"
        "  callbacks:\n    summary: {_target_: h2o_lab.results.callback.SweepSummary}\n"
    )
    (tmp_path / "app.py").write_text(
        "from pathlib import Path\nimport hydra\nfrom hydra.core.hydra_config import HydraConfig\n"
        "from h2o_lab.results import open_result\n"
        "@hydra.main(config_path='.', config_name='config', version_base='1.3')\n"
        "def main(cfg):\n"
        "    result = {'model': 'm', 'task': 't', 'policy': 'h2o', 'budget': cfg.budget}\n"
        "    result |= {'main_metric': 'acc', 'metrics': {'acc': cfg.budget}}\n"
        "    open_result(Path(HydraConfig.get().runtime.output_dir)).finish(result)\n"
        "    return cfg.budget\n"
        "main()\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "app.py", "--multirun", "budget=0.25,0.75"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "0.250" in done.stdout, done.stdout + done.stderr
    assert "2 cells, 0 without a result. Results: out/" in done.stdout
    assert len(list((tmp_path / "out").glob("*/table.csv"))) == 1
