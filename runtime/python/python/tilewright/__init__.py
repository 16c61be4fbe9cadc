"""Decode attention over a paged KV cache that reads shared prefixes once, on GPUs and on the CPU.

>>> import numpy as np
>>> from tilewright import Attention, Heads
>>> attention = Attention(Heads(query=8, kv=2, dim=64), page_size=16, dtype="float32")
>>> plan = attention.plan([0, 2, 4], [0, 1, 0, 2], [16, 4])  # once a step; both requests begin with page 0
>>> keys, values = np.ones((2, 3, 16, 2, 64), np.float32)    # [page, token, KV head, element]
>>> plan.run(np.ones((2, 8, 64), np.float32), (keys, values)).shape  # once a layer
(2, 8, 64)

Importing it starts nothing: the driver, the compiler of kernels and torch are looked for when they are first needed.
"""

from ._attention import Attention, Heads
from ._graph_plan import GraphPlan
from ._live_plan import LivePlan
from ._merge import merge_states
from ._native import CudaError, __version__
from ._plan import Plan

__all__ = ["Attention", "CudaError", "GraphPlan", "Heads", "LivePlan", "Plan", "__version__", "merge_states"]
