"""The primitive `attend`, its state, its executors, and the place where models meet it."""

from h2o_lab.attention.cache import EvictionCache
from h2o_lab.attention.caps import Caps
from h2o_lab.attention.executors import EXECUTORS, attend
from h2o_lab.attention.hook import eviction_attention
from h2o_lab.attention.state import LayerState

__all__ = ["EXECUTORS", "Caps", "EvictionCache", "LayerState", "attend", "eviction_attention"]
