"""Policies and budgets as data: defaults, sizes, refusals, and that YAML and class agree."""

import pytest
import torch
from hydra import compose, initialize_config_dir
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from h2o_lab.checks import build_policy
from h2o_lab.config import config_dir
from h2o_lab.errors import UserError
from h2o_lab.policies import (
    ALL,
    H2O,
    Budget,
    Fixed,
    H2Only,
    Local,
    Pattern,
    Priority,
    Random,
    SpAtten,
    SpAttenCascade,
    Streaming,
    Strided,
)
from h2o_lab.policies.protection import is_member, oldest_protected
from tests.support.invariants import POLICIES

NAMED = {kind.name: kind() for kind in ALL}


@pytest.mark.parametrize("name", sorted(path.stem for path in (config_dir() / "policy").glob("*.yaml")))
def test_each_yaml_builds_the_default_of_its_class(name):
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        assert build_policy(compose(f"policy/{name}").policy) == NAMED[name]


@given(st.integers(2, 5000), st.sampled_from(sorted(POLICIES)))
def test_protected_sets_always_leave_a_victim(k, name):
    policy = POLICIES[name][0]
    sizes = policy.protection(k, 2 * k)
    recent, sink, room = sizes.recent, sizes.sink, sizes.pattern.share
    assert recent >= 1
    assert min(sink, room) >= 0
    assert recent + sink + room <= policy.slots(
        k
    )  # the current token is one of the recents, so k held entries hold a victim


@given(st.integers(1, 100), st.integers(1, 4000))
def test_budget_is_the_floor_of_the_decimal(percent, n):
    assert Budget(fraction=percent / 100).entries(n, 2 * n) == max(2, percent * n // 100)
    assert Budget(fraction=percent / 100, base="sequence").entries(n, 2 * n) == max(2, percent * 2 * n // 100)


def test_budget_tokens_is_k_itself():
    assert Budget(tokens=7).entries(1000, 2000) == 7


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"fraction": 0.0}, r"budget=0.0 is out of range: budget must be in \(0, 1\]"),
        ({"fraction": 1.5}, "budget=1.5 is out of range"),
        ({"fraction": float("nan")}, "budget=nan is out of range"),
        ({"tokens": 1}, "budget_tokens must be 2 or more"),
        ({"fraction": 0.2, "tokens": 5}, "both set"),
        ({}, "no budget is set"),
        ({"fraction": 0.2, "base": "words"}, "budget_base must be prompt or sequence"),
    ],
)
def test_bad_budgets(fields, message):
    with pytest.raises(UserError, match=message):
        Budget(**fields)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: H2O(recent_fraction=1.5), "recent_fraction must be a number, 0 to 1, and is 1.5"),
        (lambda: H2O(recent_fraction="half"), "recent_fraction must be a number"),
        (lambda: H2O(recent_tokens=5), "recent_fraction or recent_tokens, not both"),
        (lambda: H2Only(recent_tokens=0), "recent_tokens must be a whole number, 1 or more"),
        (lambda: Streaming(sink_tokens=-1), "sink_tokens must be a whole number, 0 or more"),
        (lambda: Streaming(sink_tokens=2.5), "sink_tokens must be a whole number"),
        (
            lambda: H2O(priority="loudest"),
            "priority must be one of accumulated, mean, last, static, position, random, given",
        ),
        (lambda: Local(sink_tokens=4), "recent_fraction=1 leaves no room for sink_tokens=4"),
        (lambda: H2O(group_reduce="median"), "group_reduce must be sum or max"),
        (lambda: H2O(scope="planet"), "scope must be head, layer, model or cascade"),
        (lambda: H2O(pattern="zigzag", pattern_fraction=0.5), "pattern must be null, strided or fixed"),
        (lambda: H2O(pattern="strided"), "pattern and pattern_fraction go together"),
        (lambda: H2O(pattern_fraction=0.2), "pattern and pattern_fraction go together"),
        (lambda: Strided(recent_fraction=0.6), "sum above 1"),
        (lambda: Strided(sink_tokens=4), "leaves no room for sink_tokens=4"),
        (lambda: Strided(recent_fraction=None, pattern_fraction=1.0), "leaves no room for the current token"),
        (lambda: Strided(stride=0), "stride must be a whole number, 1 or more"),
        (lambda: H2O(taper=2.0), "taper must be a number, -0.9 to 0.9"),
        (lambda: SpAtten(taper=0.5), "taper must be 0"),
        (lambda: SpAttenCascade(taper=-0.5), "taper must be 0 or more"),
        (lambda: SpAtten(priority="random"), "scope=model sums attention"),
    ],
)
def test_bad_fields(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_sizes_of_the_named_policies():
    assert Local().protection(10, 100)[:3] == (10, 0, False)
    assert H2O().protection(11, 100)[:3] == (5, 0, False)
    assert H2Only().protection(11, 100)[:3] == (1, 0, False)
    assert Streaming().protection(11, 100)[:3] == (7, 4, False)
    assert Streaming().protection(4, 100)[:3] == (1, 3, True)
    assert H2O(sink_tokens=4).protection(6, 100)[:3] == (3, 3, True)
    assert H2O(recent_fraction=None, recent_tokens=50).protection(20, 100)[:3] == (20, 0, True)


def test_patterns_follow_n_and_k_and_are_cut_first():
    assert Strided().protection(20, 100) == (10, 0, False, Pattern(10, 10, 0, 1))
    assert Fixed().protection(20, 100) == (10, 0, False, Pattern(10, 40, 36, 4))
    assert Strided(stride=7).protection(20, 100).pattern == Pattern(10, 7, 0, 1)
    assert Fixed(block=16, block_tail=2).protection(20, 100).pattern == Pattern(10, 16, 14, 2)
    crowded = Strided(recent_fraction=0.25, sink_tokens=4)
    assert crowded.protection(20, 100) == (5, 4, False, Pattern(10, 10, 0, 1))
    assert crowded.protection(6, 100) == (1, 4, True, Pattern(1, 100, 0, 1))
    assert crowded.protection(4, 100)[:3] == (1, 3, True)


@given(st.integers(1, 30), st.integers(1, 9), st.integers(0, 30), st.integers(0, 12), st.integers(-3, 200))
def test_the_newest_members_of_a_pattern_are_protected(period, width, first, room, newest):
    width = min(width, period)
    first = min(first, period - width)
    sizes = [torch.tensor(x) for x in (room, period, first, width)]
    members = [s for s in range(newest + 1) if first <= s % period < first + width]
    positions = torch.arange(max(newest, 0) + 1)
    inside = is_member(positions, period, first, width)
    assert positions[inside & (positions <= newest)].tolist() == members
    floor = oldest_protected(torch.tensor(newest), *sizes)
    assert [s for s in members if s >= floor] == (members[-room:] if room else [])


def test_a_cap_that_no_sample_could_satisfy():
    Streaming().check_tokens(5)
    with pytest.raises(UserError, match="budget_tokens must be 5 or more"):
        Streaming().check_tokens(4)
    with pytest.raises(UserError, match="than budget_tokens=10 can hold: budget_tokens must be 64 or more"):
        Local(recent_fraction=None, recent_tokens=64).check_tokens(10)
    with pytest.raises(UserError, match="budget_tokens must be 7 or more"):
        H2O(sink_tokens=4).check_tokens(5)


def test_random_depends_on_seed_layer_head_and_position_alone():
    positions = torch.arange(1000)[None]
    keys = torch.zeros(1, 2, 1000, 4)
    numbers = Random().static_priority(positions, keys, layer=3, seed=7)
    part = Random().static_priority(positions[:, 400:500], keys[:, :, 400:500], layer=3, seed=7)
    assert torch.equal(numbers[:, :, 400:500], part)
    for other in (
        Random().static_priority(positions, keys, layer=4, seed=7),
        Random().static_priority(positions, keys, layer=3, seed=8),
        numbers.flip(1),
    ):
        assert (numbers == other).float().mean() < 0.01
    uniform = numbers / 2**24
    assert uniform.mean().item() == pytest.approx(0.5, abs=0.03)
    assert len(numbers.unique()) > 1990


def test_priority_reads_words():
    assert H2O(priority="mean").priority is Priority.MEAN


@pytest.mark.parametrize("target", ["shutil.copyfile", "pathlib.Path", "h2o_lab.policies.Budget", "no.Where"])
def test_what_is_no_policy_is_refused_before_it_runs(tmp_path, target):
    (tmp_path / "from").write_text("x")
    fields = {"src": str(tmp_path / "from"), "dst": str(tmp_path / "to")}
    with pytest.raises(UserError, match="cannot be built|must name a class derived from"):
        build_policy(OmegaConf.create({"_target_": target} | fields))
    assert not (tmp_path / "to").exists()
