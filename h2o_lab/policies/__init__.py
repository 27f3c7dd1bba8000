"""Eviction policies: one file per idea, pure data and rules."""

from h2o_lab.policies.base import Policy
from h2o_lab.policies.budget import Budget
from h2o_lab.policies.full import Full
from h2o_lab.policies.h2o import H2O, H2OMean, H2Only
from h2o_lab.policies.key_norm import KeyNorm
from h2o_lab.policies.local import Local
from h2o_lab.policies.oracle import DropH2, GlobalH2
from h2o_lab.policies.priority import Priority
from h2o_lab.policies.protection import Pattern, Protection
from h2o_lab.policies.published import GlobalH2Mask, H2OOfficialMask, H2ORealDrop
from h2o_lab.policies.random import Random
from h2o_lab.policies.snapkv import PyramidKV, SnapKV
from h2o_lab.policies.sparse import SparsePolicy
from h2o_lab.policies.sparse_transformer import Fixed, FixedH2, Strided, StridedH2
from h2o_lab.policies.spatten import SpAtten, SpAttenCascade
from h2o_lab.policies.streaming import H2OStreaming, Streaming
from h2o_lab.policies.topk import TopK, TopKH2
from h2o_lab.policies.tova import Tova

ALL: tuple[type[Policy], ...] = (
    Full,
    Local,
    Streaming,
    Strided,
    Fixed,
    Random,
    KeyNorm,
    H2O,
    H2Only,
    H2OMean,
    H2OStreaming,
    StridedH2,
    FixedH2,
    Tova,
    SpAtten,
    SpAttenCascade,
    SnapKV,
    PyramidKV,
    TopK,
    TopKH2,
    GlobalH2,
    DropH2,
    H2OOfficialMask,
    GlobalH2Mask,
    H2ORealDrop,
)
"""Every policy of the package, from the plainest on."""

__all__ = [
    "ALL",
    "H2O",
    "Budget",
    "DropH2",
    "Fixed",
    "FixedH2",
    "Full",
    "GlobalH2",
    "GlobalH2Mask",
    "H2OMean",
    "H2OOfficialMask",
    "H2ORealDrop",
    "H2OStreaming",
    "H2Only",
    "KeyNorm",
    "Local",
    "Pattern",
    "Policy",
    "Priority",
    "Protection",
    "PyramidKV",
    "Random",
    "SnapKV",
    "SpAtten",
    "SpAttenCascade",
    "SparsePolicy",
    "Streaming",
    "Strided",
    "StridedH2",
    "TopK",
    "TopKH2",
    "Tova",
]
