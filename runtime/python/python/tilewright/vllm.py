"""vLLM: an attention backend whose decode batches read shared prefixes once. Everything else is FlashAttention's.

vLLM finds it by itself, by the entry point ``tilewright`` of ``vllm.general_plugins``. Choose it with ``--attention-backend CUSTOM``::

    vllm serve MODEL --attention-backend CUSTOM

Batches in which every request brings one token are computed by Tilewright from the pages of vLLM's own cache, FP8 ones included; prompts, mixed
batches, drafts, encoders and layers with ALiBi go to FlashAttention. Full CUDA graphs serve decode batches
(``UNIFORM_SINGLE_TOKEN_DECODE``): one captured graph of each size, whose plan is updated before each replay.

Plans are made on the host. vLLM's first model runner keeps block tables there; what its second one appends to its own, which are on the device
alone, is mirrored (where another version has other tables, each step that decodes waits for their copy). It runs with vLLM 0.24 on an H200; the classes
were tried over those of 0.33 on a CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._vllm_backend import TilewrightBackend as TilewrightBackend

BACKEND = "tilewright._vllm_backend.TilewrightBackend"


def register() -> None:
    """Registers the backend as ``CUSTOM``; vLLM calls it in each of its processes. Imports no backend, and starts nothing.

    Raises:
        ImportError: vLLM is not installed, or one without registered backends (before 0.24).
    """
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, BACKEND)
