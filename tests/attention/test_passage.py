"""One token or many in a compiled pass: the products, the turns, and the cache that the reference leaves."""

import numba
import numpy as np
import pytest
import torch

from h2o_lab.attention import Caps, LayerState, compiled, kernel, passage, reference
from h2o_lab.attention.lane import NOWHERE
from h2o_lab.attention.rolling import ROOM
from h2o_lab.attention.rotary import Rotary
from h2o_lab.attention.tiles import COLUMNS, ROWS, dot, dot_panels, whole
from h2o_lab.policies import H2O, H2OStreaming, Policy, Streaming, StridedH2, Tova
from tests.support.models import random_model


@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 1, 1), (ROWS, COLUMNS, 8), (37, 70, 80), (96, 134, 64)])
def test_products_of_any_size_are_those_of_numpy(rows, columns, depth):
    draw = np.random.default_rng(0)
    a = np.zeros((whole(rows, ROWS), depth), np.float32)
    b = np.zeros((depth, whole(columns, COLUMNS)), np.float32)
    a[:rows], b[:, :columns] = draw.normal(size=(rows, depth)), draw.normal(size=(depth, columns))
    c = np.full((len(a), b.shape[1]), np.nan, np.float32)
    panels = np.ascontiguousarray(b.reshape(depth, -1, COLUMNS).transpose(1, 0, 2))
    dot_panels(a, panels, c, rows, columns)
    np.testing.assert_allclose(c[:rows, :columns], (a @ b)[:rows, :columns], rtol=1e-4, atol=1e-5)
    c[:] = np.nan
    dot(a, b, c, rows, depth)
    np.testing.assert_allclose(c[:rows, :columns], (a @ b)[:rows, :columns], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 7, 12])
@pytest.mark.parametrize("workers", [1, 2, 4, 5])
def test_every_part_of_every_lane_has_its_turn_after_the_part_before(lanes, workers):
    done = dict.fromkeys(range(lanes), 0.0)
    order = passage.turns(lanes, workers)
    for turn in order:
        served = [lane for lane, _, _ in turn if lane != NOWHERE]
        assert len(set(served)) == len(served)
        for lane, part, parts in turn:
            if lane != NOWHERE:
                assert done[lane] == pytest.approx(part / parts)
                done[lane] += 1 / parts
    assert list(done.values()) == pytest.approx([1.0] * lanes)
    tasks = int((order[:, :, 0] != NOWHERE).sum())
    assert len(order) == -(-tasks // min(lanes, workers)), "none waits but at the end"


CASES = [
    (H2O(), [30], 1, 64, torch.float32, 0),
    (H2O(), [40, 25], 3, 8, torch.float32, 60),
    (H2O(), [500, 3], 2, 80, torch.float32, 10),
    (H2O(group_reduce="max"), [33], 3, 16, torch.bfloat16, 0),
    (H2O(scope="layer"), [40, 25], 2, 16, torch.float32, 60),
    (Tova(), [40], 3, 64, torch.float32, 0),
    (StridedH2(), [40], 2, 16, torch.float32, 0),
]


@pytest.mark.parametrize(("policy", "k", "group", "size", "dtype", "padding"), CASES)
@pytest.mark.parametrize("calls", [[150], [1, 70, 1, 1, 77]])
def test_the_cache_is_the_one_that_the_reference_leaves(policy, k, group, size, dtype, padding, calls):
    fed = [feed(way, policy, k, group, size, dtype, padding, calls) for way in (compiled.attend, reference.attend)]
    compare(*fed, torch.arange(150) >= padding, atol=2e-2 if dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("policy", [H2OStreaming(), Streaming(), H2O(scope="layer", recent_fraction=0.1)])
@pytest.mark.parametrize("parts", [0, 90])
@pytest.mark.parametrize("rotary", [Rotary(random_model("llama")), Rotary(random_model("gpt_neox"))])
def test_positions_roll_on_when_the_frame_is_set_back(policy, rotary, parts):
    length = 2 * ROOM + 200
    fed = [
        feed(way, policy, [40, 25], 2, 8, torch.float32, 60, [length - parts, *[1] * parts], rotary)
        for way in (compiled.attend, reference.attend)
    ]
    compare(*fed, torch.arange(length) >= 60, atol=1e-5)


def test_values_of_another_dtype_than_keys_are_kept():
    """As under autocast, where keys are rotated in float32."""
    ways = compiled.attend, reference.attend
    fed = [feed(way, H2O(), [20], 2, 8, torch.float32, 0, [100, 1, 1, 1], values=torch.bfloat16) for way in ways]
    compare(*fed, torch.arange(103) >= 0, atol=1e-5)


@pytest.mark.parametrize("scope", ["head", "layer"])
def test_whatever_padding_has_is_not_looked_at(scope):
    policy = H2O(scope=scope)
    fed = [
        feed(compiled.attend, policy, [20, 9], 2, 8, torch.float32, 40, [100, 1], padded_with=number)
        for number in (0.0, torch.nan)
    ]
    compare(*fed, torch.arange(101) >= 40, atol=0)


def compare(ours, theirs, given: torch.Tensor, atol: float) -> None:
    """States and outputs of two ways to feed the same tokens; outputs of padding do not count."""
    states, outputs = zip(ours, theirs, strict=True)
    torch.testing.assert_close(*(out[:, :, given] for out in outputs), rtol=1e-4, atol=atol)
    assert torch.equal(states[0].evicted_at, states[1].evicted_at)
    orders = [state.positions.argsort(dim=-1) for state in states]
    for name in ("positions", "keys", "values"):
        pair = [take(getattr(state, name), order) for state, order in zip(states, orders, strict=True)]
        assert torch.equal(*pair), name
    scores = [take(state.scores, order) for state, order in zip(states, orders, strict=True)]
    torch.testing.assert_close(*scores, rtol=1e-4, atol=1e-5)


def test_the_number_of_threads_changes_no_bit():
    before = numba.get_num_threads()
    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("numba has one thread here")
    found = []
    try:
        for threads in (1, 2):
            numba.set_num_threads(threads)
            state, out = feed(passage.attend, H2O(), [40], 3, 64, torch.float32, 0, [150])
            found.append((out, state.scores, state.positions, state.keys))
    finally:
        numba.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


def feed(
    way,
    policy: Policy,
    k: list[int],
    group: int,
    size: int,
    dtype: torch.dtype,
    padding: int,
    calls: list[int],
    rotary: Rotary | None = None,
    values: torch.dtype | None = None,
    padded_with: float = 0.0,
) -> tuple[LayerState, torch.Tensor]:
    """Tokens in several calls, the first sequence padded on the left; three KV heads."""
    kernel.ready()
    draw, length = torch.Generator().manual_seed(0), sum(calls)
    q = torch.randn(len(k), 3 * group, length, size, generator=draw).to(dtype)
    keys, mixed = torch.randn(2, len(k), 3, length, size, generator=draw).to(dtype)
    mixed = mixed.to(values or dtype)
    for x in (q, keys, mixed):
        x[0, :, :padding] = padded_with
    valid = torch.ones(len(k), length, dtype=torch.bool)
    valid[0, :padding] = False
    caps = Caps.of(policy, k, [length] * len(k))
    state = LayerState.empty(policy, caps, keys, mixed, record=True, rotary=rotary)
    outputs, start = [], 0
    for tokens in calls:
        now = slice(start, start + tokens)
        state.reserve(int((state.seen + valid[:, now].sum(dim=1)).max()))
        part = (x[:, :, now] for x in (q, keys, mixed))
        outputs.append(way(*part, state, scale=size**-0.5, valid=valid[:, now], static=None))
        start += tokens
    return state, torch.cat(outputs, dim=2)


def take(tensor: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    index = order[..., None].expand(*order.shape, tensor.shape[-1]) if tensor.dim() == 4 else order
    return tensor.gather(2, index)
