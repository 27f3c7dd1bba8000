"""Recorded attention, end to end: against whole maps, over policies, in the result folder, and what is refused."""

import json
import pickle

import numpy as np
import pandas as pd
import pytest
import torch

from h2o_lab.config import PerplexityConfig, StatsConfig
from h2o_lab.data.texts import Text
from h2o_lab.errors import UserError
from h2o_lab.policies import H2O, Full, Local, TopK
from h2o_lab.results import load
from h2o_lab.stats import TABLES, Recorder, headline, read, tables
from h2o_lab.stats.summary import heavy_hitters
from h2o_lab.tasks.perplexity import Texts, evaluate
from h2o_lab.tasks.reader import Reader
from h2o_lab.theory.maps import attention_maps
from tests.support.command_line import run, workplace
from tests.support.models import character_tokenizer, random_model
from tests.support.recorded import recorded

__all__ = ["workplace"]  # a fixture

LENGTH = 64


def text(seed: int, length: int = LENGTH) -> list[int]:
    return torch.randint(3, 97, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("family", ["llama", "opt", "gpt_neox"])
def test_full_attention_is_recorded_as_the_maps_say(family):
    model, ids = random_model(family), text(0)
    found = tables(recorded([ids], Full(), model=model))
    maps = torch.from_numpy(attention_maps(model, torch.tensor(ids)))  # [L, Hq, T, T]
    heads = model.config.num_key_value_heads if family == "llama" else 6
    groups = maps.view(len(maps), heads, -1, LENGTH, LENGTH)
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    small = (groups < 0.01 * groups.amax(dim=-1, keepdim=True)) & causal
    sparsity = small.sum(dim=(2, 3, 4)) / (groups.shape[2] * causal.sum())
    zeros = (small | ~causal).sum(dim=(2, 3, 4)) / (groups.shape[2] * LENGTH**2)
    received = groups.sum(dim=(2, 3))
    assert np.allclose(found["heads"]["sparsity"], sparsity.flatten(), atol=1e-3)  # one entry on the threshold
    assert np.allclose(found["heads"]["sparsity_of_square"], zeros.flatten(), atol=1e-3)
    curve = received.sort(dim=-1, descending=True).values.cumsum(dim=-1) / received.sum(dim=-1, keepdim=True)
    at_half = found["curves"].query("share == 0.5")["mass"]
    assert np.allclose(at_half, curve[..., LENGTH // 2 - 1].flatten(), atol=1e-5)
    values = found["values"].query("layer == 1")["value"]
    relative = (received / received.mean(dim=-1, keepdim=True))[1]
    assert np.allclose(np.sort(values), np.sort(relative.flatten()), atol=1e-4)
    half = groups[:, :, :, : LENGTH // 2].sum(dim=(2, 3))[..., : LENGTH // 2]
    early, late = (heavy_hitters(x[..., : LENGTH // 2], 0.2) for x in (half, received))
    overlap = (early & late).sum(dim=-1) / early.sum(dim=-1)
    assert np.allclose(found["times"].query("at == 0.5")["overlap_with_final"], overlap.flatten())


def test_tokens_and_kinds_add_up():
    recorder = recorded([text(0), text(1), text(2, 30)], Full(), model=random_model("llama"))
    found = tables(recorder)
    assert recorder.about | {"seconds": 0} == {"texts": 3, "tokens": 158, "skipped_texts": 0, "seconds": 0}
    assert found["tokens"]["count"].sum() == 158 - 3, "first tokens are left out"
    assert found["kinds"].groupby("layer")["tokens"].sum().tolist() == pytest.approx([158 / 3] * 3)
    first = found["kinds"].query("kind == 'first token'")["attention"].mean()
    weighted = found["tokens"]["attention"] * found["tokens"]["count"]
    assert weighted.sum() + 3 * first == pytest.approx(158, rel=1e-4)
    for name in ("kinds", "places"):
        table = found[name]
        mean = (table["attention"] * table["tokens"]).groupby(table["layer"]).sum() / (158 / 3)
        assert np.allclose(mean, 1, atol=1e-4), name


def test_a_batch_with_padding_is_recorded_as_its_texts_alone():
    texts = [text(0), text(1, 40), text(2, 23)]
    together = tables(recorded(texts, H2O(), 12))
    apart = Recorder(StatsConfig(), character_tokenizer())
    reader = Reader(random_model("llama"), H2O(), recorder=apart)
    with reader.open():
        for one in texts:
            reader.start([one], torch.zeros(1, len(one), dtype=torch.bool), [12], [len(one)])
    for name, table in tables(apart).items():
        pd.testing.assert_frame_equal(together[name], table, atol=1e-4, rtol=1e-3)


def test_what_an_evicting_cache_holds():
    times = tables(recorded([text(0), text(1)], H2O(), 16))["times"]
    assert times.query("at >= 0.25")["held"].eq(16).all()
    assert (times.query("at == 1")["retained"] < 1).all()
    local = tables(recorded([text(0), text(1)], Local(), 16))["times"].query("at >= 0.25")
    assert local["age"].eq(7.5).all()
    later = times.query("at == 1")["age"]
    assert (later > 7.5).all(), "heavy hitters are older than the last 16"
    full = tables(recorded([text(0)], Full()))["times"]
    assert np.allclose(full["retained"], 1)
    assert full["held"].tolist() == (full["at"] * LENGTH).tolist()


def test_policies_that_mask_and_prompts_in_full_are_recorded_as_full_attention():
    expected = tables(recorded([text(0)], Full()))["heads"]
    first = expected["layer"] == 0  # what later layers see differs
    names = ["sparsity", "gini", "mass_of_top_10"]
    masked = tables(recorded([text(0)], TopK(), 16))["heads"]
    assert np.allclose(masked.loc[first, names], expected.loc[first, names])
    whole = tables(recorded([text(0)], H2O(), 16, prefill="full"))["heads"]
    assert np.allclose(whole[names], expected[names], atol=1e-4)


def test_attention_per_query_is_one_where_all_get_the_same():
    model = random_model("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    for policy, k in ((Full(), None), (H2O(), 12)):
        tokens = tables(recorded([text(0), text(1)], policy, k, model=model))["tokens"]
        assert np.allclose(tokens["per_query"].dropna(), 1, atol=1e-4), policy


def test_a_last_window_that_is_mostly_old_is_not_recorded():
    texts = Texts([Text("t", "".join(chr(40 + i % 60) for i in range(200)))], "here")
    recorders = []
    for tokens in (127, 130, 190):  # two windows of 64; a third with three new tokens; with all new
        recorder = Recorder(StatsConfig(), character_tokenizer())
        task = PerplexityConfig(name="text", window=64, tokens=tokens)
        evaluate(texts, task, None, Reader(random_model("llama"), Full(), recorder=recorder), character_tokenizer())
        recorders.append(recorder.texts)
    assert recorders == [2, 2, 3]


def test_an_evaluation_is_kept_where_its_statistics_fail(workplace):
    words = ("policy=h2o", "budget=0.3", "stats=attention", "stats.checkpoints=100000", "results_dir=no_tables")
    done = run(workplace, *words)
    assert done.returncode == 0, done.stderr
    assert "the result is kept without them" in done.stderr
    (file,) = (workplace / "no_tables").glob("2*/result.json")
    record = json.loads(file.read_text())
    assert record["status"] == "finished"
    assert "have fewer tokens than stats.checkpoints=100000" in record["stats"]["error"]
    assert "found finished in" in run(workplace, *words).stderr


def test_short_texts_are_left_out_and_nothing_at_all_is_a_sentence():
    recorder = recorded([text(0), text(1, 5)], Full())
    assert (recorder.texts, recorder.skipped) == (1, 1)
    with pytest.raises(UserError, match="all 1 texts have fewer tokens than stats.checkpoints=8"):
        tables(recorded([text(0, 5)], Full()))


def test_memory_does_not_grow_with_the_number_of_texts():
    recorder = Recorder(StatsConfig(sample_size=200), character_tokenizer())
    reader = Reader(random_model("llama"), H2O(), recorder=recorder)
    sizes = []
    with reader.open():
        for number in range(200):
            ids = text(number)
            reader.start([ids], torch.zeros(1, LENGTH, dtype=torch.bool), [12], [LENGTH])
            if number in (19, 199):
                kept = {name: value for name, value in vars(recorder).items() if name != "_tokenizer"}
                sizes.append(len(pickle.dumps(kept)))
    assert recorder.texts == 200
    assert sizes[1] < 1.001 * sizes[0]


# --- in a run


STATS = ("policy=h2o", "budget=0.3", "stats=attention", "results_dir=recorded")


def test_a_run_stores_the_tables_and_a_restart_has_them_too(workplace):
    done = run(workplace, *STATS)
    assert done.returncode == 0, done.stderr
    plain = run(workplace, "policy=h2o", "budget=0.3", "results_dir=recorded")
    assert "results in" in plain.stderr, "another cell"
    again = run(workplace, *STATS)
    assert "found finished in" in again.stderr
    folders = sorted((workplace / "recorded").glob("2*"))
    assert [sorted(file.stem for file in (folder / "stats").glob("*")) for folder in folders] == [
        sorted(TABLES),
        [],
        sorted(TABLES),
    ]
    heads = read(folders[0], "heads")
    assert len(heads) == 3 * 2
    pd.testing.assert_frame_equal(heads, read(folders[2], "heads"))
    record = json.loads((folders[0] / "result.json").read_text())
    assert record["stats"]["sparsity"] == pytest.approx(heads["sparsity"].mean())
    assert record["stats"]["texts"] == 5
    frame = load(workplace / "recorded")
    assert frame["stats.gini"].notna().sum() == 1
    accuracies = {json.loads((folder / "result.json").read_text())["metrics"]["acc"] for folder in folders}
    assert len(accuracies) == 1, "recording changes nothing"
    with pytest.raises(UserError, match="run it with stats=attention"):
        read(folders[1], "heads")
    with pytest.raises(UserError, match="head is no table"):
        read(folders[0], "head")
    (folders[2] / "stats" / "heads.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(UserError, match=r"heads\.parquet cannot be read"):
        read(folders[2], "heads")
    for folder in folders:
        (folder / "stats" / "times.parquet").unlink(missing_ok=True)
    with pytest.raises(UserError, match=r"times\.parquet is missing: run the cell again"):
        read(folders[0], "times")
    assert "results in" in run(workplace, *STATS).stderr
    assert len(list((workplace / "recorded").glob("2*/stats/times.parquet"))) == 1


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["stats.threshold=0"], r"stats\.threshold=0\.0 is out of range: it must be between 0 and 1"),
        (["stats.heavy_share=1"], r"stats\.heavy_share=1\.0 is out of range"),
        (["stats.checkpoints=0"], r"stats\.checkpoints=0 is out of range: it must be 1 or more"),
        (["positions=rolling"], "cannot record positions=rolling: use positions=original or stats=none"),
        (["policy=spatten_cascade"], "policy=spatten_cascade reads one token at a time: use prefill=full"),
        (["task=wikitext", "task.mode=streaming"], "does not record streams: use task.mode=windowed"),
        (["task=wikitext", "task.stride=100"], "records windows that are new by half at least"),
        (["model.tp_plan=auto"], "sees the heads of one process, and model.tp_plan=auto shares them out"),
        (["stats.name=all"], "stats=all is unknown: it must be one of none, attention"),
    ],
)
def test_what_cannot_be_recorded_is_said_before_anything_starts(overrides, sentence, monkeypatch):
    from hydra import compose, initialize_config_dir

    from h2o_lab.checks import check
    from h2o_lab.config import config_dir, register

    if "model.tp_plan=auto" in overrides:  # as torchrun starts it
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
        monkeypatch.setenv("WORLD_SIZE", "2")
    register()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("config", ["stats=attention", "budget=0.2", "tracker=none", *overrides])
    with pytest.raises(UserError, match=sentence):
        check(cfg)


def test_the_headline_counts_verdicts():
    recorder = recorded([text(0), text(1)], Full())
    found = tables(recorder)
    told = headline(recorder, found)
    assert sum(told["verdicts"].values()) == 3
    assert told["sparsity"] == pytest.approx(found["heads"]["sparsity"].mean())
    assert told["texts"] == 2
    assert told["overlap_with_final"] < 1
