"""Property tests of `attend`: any shape, any chunking, any padding, every executor, against the plain oracle."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.invariants import EXECUTORS, POLICIES, Tokens, expected, feed, fresh, kept


@st.composite
def cases(draw):
    length = draw(st.integers(1, 40))
    cuts = sorted(draw(st.sets(st.integers(1, length), max_size=4)) | {length})
    chunks = [b - a for a, b in zip([0, *cuts], cuts, strict=False)]
    return {
        "name": draw(st.sampled_from(sorted(POLICIES))),
        "executor": draw(st.sampled_from(EXECUTORS)),
        "heads": draw(st.integers(1, 3)),
        "group": draw(st.integers(1, 4)),
        "size": draw(st.sampled_from([1, 3, 8])),
        "caps": draw(st.lists(st.integers(2, 45), min_size=1, max_size=3)),
        "holes": draw(st.sets(st.tuples(st.integers(0, 2), st.integers(0, length - 1)), max_size=30)),
        "chunks": chunks,
        "seed": draw(st.integers(0, 10**6)),
    }


@settings(max_examples=60, deadline=None)
@given(cases())
def test_attend_equals_the_oracle(case):
    name, (policy, _) = case["name"], POLICIES[case["name"]]
    caps, group = case["caps"], case["group"]
    tokens = Tokens.draw(len(caps), case["heads"], group, sum(case["chunks"]), case["size"], case["seed"])
    for b, j in case["holes"]:
        if b < len(caps):
            tokens.valid[b, j] = False
    state = fresh(policy, tokens, caps)
    out = feed(state, tokens, case["executor"], case["chunks"])
    for b, cap in enumerate(caps):
        real = tokens.valid[b]
        if not real.any():
            assert kept(state, b) == []
            continue
        right, history, _ = expected(name, tokens, b, cap)
        mine = out[b].view(case["heads"], group, -1, case["size"])[:, :, real]
        torch.testing.assert_close(mine.double(), right, atol=1e-5, rtol=0)
        for h in range(case["heads"]):
            held = history[h][-1] if history is not None else list(range(int(real.sum())))
            assert kept(state, b, h) == held
    assert state.seen.tolist() == tokens.valid.sum(dim=1).tolist()
