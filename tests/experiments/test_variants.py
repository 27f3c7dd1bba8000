"""`experiments.variants`: what queries saw, how it overlaps, and what is recorded and written."""

import json
import math
from pathlib import Path

import pytest
import torch

from h2o_lab.attention import EvictionCache, eviction_attention
from h2o_lab.policies import ALL, H2O, Full, H2Only, H2OOfficialMask, H2ORealDrop, Policy, SpAtten, Tova
from h2o_lab.results import load, load_samples
from tests.support.invariants import Tokens, feed, fresh
from tests.support.models import random_model

ROOT = Path(__file__).resolve().parents[2]
KINDS = {kind.name: kind for kind in ALL}
CAP, LENGTH = 9, 40


@pytest.fixture
def variants(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from experiments import variants

    return variants


ONE_LAYER = "full h2o h2o_mean h2_only h2o_streaming h2o_real_drop h2o_official_mask global_h2 global_h2_mask tova"


@pytest.mark.parametrize("name", ONE_LAYER.split())
def test_what_is_said_to_be_seen_is_what_was_attended_to(variants, name):
    """Plain attention over the told sets gives the executor's outputs."""
    tokens = Tokens.draw(length=LENGTH)
    state = fresh(KINDS[name](), tokens, CAP, record=True)
    out = feed(state, tokens, "auto")
    seen = variants.seen_by(state, torch.arange(LENGTH).expand(2, -1))
    k, v, mask = (x.repeat_interleave(3, dim=1) for x in (tokens.k, tokens.v, seen))
    logits = (tokens.q @ k.transpose(2, 3) * tokens.scale).masked_fill(~mask, -torch.inf)
    torch.testing.assert_close(logits.softmax(dim=-1) @ v, out, atol=1e-5, rtol=0)


Sets = list[list[list[set[int]]]]
"""By query, layer and head: the positions that the query sees."""


@torch.no_grad()
def step_by_step(model, ids: torch.Tensor, policy: Policy) -> Sets:
    """What is held after each token is what its query saw; for the published mask with its band."""
    cache = EvictionCache(3, policy, CAP, record=True)
    sets = []
    with eviction_attention(model):
        for t in range(ids.shape[1]):
            model(ids[:, t : t + 1], cache=cache, position_ids=torch.tensor([[t]]))
            masked = isinstance(policy, H2OOfficialMask)
            states = [state.companion if masked else state for state in cache.states]
            held = [[{p for p in head.tolist() if p >= 0} for head in state.positions[0]] for state in states]
            band = set(range(max(0, t - CAP // 2), t + 1)) if masked else set()
            sets.append([[head | band for head in layer] for layer in held])
    return sets


@torch.no_grad()
def recorded(model, ids: torch.Tensor, policy: Policy) -> EvictionCache:
    from h2o_lab.attention.feeding import calls

    cache = EvictionCache(3, policy, CAP, record=True)
    with eviction_attention(model):
        for part in calls(cache, torch.ones(ids.shape, dtype=torch.bool)):
            model(ids[:, part], cache=cache, position_ids=torch.arange(LENGTH)[None, part])
    return cache


@pytest.mark.parametrize("policy", [Full(), H2Only(), H2ORealDrop(), H2OOfficialMask(), SpAtten(), Tova()])
def test_overlaps_are_those_of_a_loop_over_steps(variants, policy):
    model = random_model("llama")
    ids = torch.randint(3, 97, (1, LENGTH), generator=torch.Generator().manual_seed(5))
    mine, base = step_by_step(model, ids, policy), step_by_step(model, ids, H2O())
    pairs = zip(recorded(model, ids, policy).states, recorded(model, ids, H2O()).states, strict=True)
    for layer, (state, reference) in enumerate(pairs):
        expected: dict[str, list[float]] = {"seen": [], "overlap": [], "older": []}
        for t in range(CAP, LENGTH):
            for a, b in zip(mine[t][layer], base[t][layer], strict=True):
                older = {s for s in b if s <= t - CAP // 2}
                assert (len(b), len(older)) == (CAP, CAP - CAP // 2)
                expected["seen"].append(len(a))
                expected["overlap"].append(len(a & b) / len(b))
                expected["older"].append(len(a & older) / len(older))
        found = variants.overlaps(state, reference, CAP)
        assert {key: value.item() for key, value in found.items()} == pytest.approx(
            {key: sum(values) / len(values) for key, values in expected.items()}
        )


def test_rows_of_a_batch_are_told_apart(variants):
    tokens = Tokens.draw(length=LENGTH)
    both = [fresh(kind(), tokens, CAP, record=True) for kind in (H2Only, H2O)]
    for state in both:
        feed(state, tokens, "auto")
    together = variants.overlaps(*both, CAP)["overlap"]
    for row in range(2):
        alone = [state.select(torch.tensor([row])) for state in both]
        assert variants.overlaps(*alone, CAP)["overlap"].item() == together[row].item()
    assert together[0] != together[1]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """A tiny LLaMA in `llama`, and a text of 100 words in `text.txt`."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("variants")
    random_model("llama").save_pretrained(folder / "llama")
    words = {"<end>": 0} | {f"w{i}": i for i in range(1, 97)}
    tokenizer = Tokenizer(models.WordLevel(words, "<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder / "llama")
    (folder / "text.txt").write_text(" ".join(f"w{1 + (7 * j + j * j) % 96}" for j in range(100)))
    return folder


@pytest.fixture
def main(monkeypatch, workplace, variants):
    """`experiments.variants.main` on the tiny model; returns the folder of results."""
    monkeypatch.setattr("h2o_lab.log.set_up", lambda: None)  # global, and not to be undone
    threads = torch.get_num_threads()

    def run(name: str, **more: object) -> Path:
        options = {
            "model-path": workplace / "llama",
            "text-file": workplace / "text.txt",
            "results-dir": workplace / name,
            "windows": 2,
            "length": 30,
            "threads": threads,
        }
        variants.main([f"--{key}={value}" for key, value in (options | more).items()])
        return workplace / name

    yield run
    torch.set_num_threads(threads)


def test_a_run_is_recorded_and_written(main, variants, workplace, capsys):
    path = workplace / "variants.json"
    path.write_text(json.dumps({"another": {"k": 3}}))
    folder = main("run", write=path)
    row = load(folder).iloc[0]
    assert (row["status"], row["task"], row["k"]) == ("finished", "variants", 6)
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*variants.NAMES, *variants.MEASURES))

    written = json.loads(path.read_text())
    assert written["another"] == {"k": 3}
    entry = written["llama"]
    assert (entry["k"], entry["length"], entry["data"]) == (6, 30, {"origin": "text.txt"})
    assert entry["versions"]["torch"] == torch.__version__
    rows = entry["rows"]
    assert list(rows) == list(variants.NAMES)
    for key in ("overlap", "older", "layer_0"):
        assert rows["h2o"][key] == rows["full"][key] == 1
        assert 0 < rows["local"][key] < 1
    assert rows["h2o"]["seen"] == rows["spatten"]["seen"] == 6
    assert rows["h2o_real_drop"]["seen"] == 7
    # queries 6 .. 28 see 7 .. 29 tokens; the last token of a window is only a target
    assert rows["full"]["seen"] == 18

    samples = load_samples(next(path.parent for path in folder.glob("*/result.json")))
    for name in ("h2o", "spatten"):
        mine = samples[samples["variant"] == name]
        assert list(mine["window"]) == [0, 1]
        mean = mine["loss"].mean()
        assert rows[name]["perplexity"] == pytest.approx(math.exp(mean), abs=1e-4)
        assert rows[name]["overlap"] == pytest.approx(mine["overlap"].mean(), abs=1e-4)
        by_layer = mine["overlap_by_layer"].iloc[0]
        assert by_layer[0] == mine["layer_0"].iloc[0]
        assert sum(by_layer) / 3 == pytest.approx(mine["overlap"].iloc[0])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"budget": 1.0}, "--length 32 or more, so that h2o with k=30 evicts something"),
        ({"windows": 0}, "--windows must be 1 or more"),
        ({"windows": 9}, "has 100 tokens, and 9 windows of 30 are asked for"),
        ({"write": "nowhere/at/all.json"}, "--write nowhere/at/all.json: there is no such folder"),
    ],
)
def test_wrong_arguments_are_one_sentence(main, monkeypatch, wrong, message):
    said: list[str] = []
    monkeypatch.setattr("h2o_lab.log.complain", said.append)
    with pytest.raises(SystemExit, match="2"):
        main("wrong", **wrong)
    assert message in said.pop()
