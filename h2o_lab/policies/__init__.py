"""Eviction policies: one file per idea, pure data and rules."""

from h2o_lab.policies.base import Policy, Priority, Protection
from h2o_lab.policies.budget import Budget
from h2o_lab.policies.full import Full
from h2o_lab.policies.h2o import H2O, H2Only
from h2o_lab.policies.local import Local
from h2o_lab.policies.random import Random
from h2o_lab.policies.streaming import Streaming

__all__ = [
    "H2O",
    "Budget",
    "Full",
    "H2Only",
    "Local",
    "Policy",
    "Priority",
    "Protection",
    "Random",
    "Streaming",
]
