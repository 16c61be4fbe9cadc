"""FlashAttention 3 for Transformers from the kernels of a vLLM wheel, where the package itself is not installed.

Transformers imports `flash_attn_interface` of the distribution `flash-attn-3`. vLLM's wheel has the same kernels in one library, compiled without
appending to the cache: K and V of new tokens are written by torch here, once a layer, as Tilewright's integration does.
"""

from __future__ import annotations

import importlib.util
import lzma
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

_INTERFACE = '''
import torch

torch.ops.load_library({library!r})
_fwd = torch.ops._vllm_fa3_C.fwd


def _run(q, k, v, cu_q, cu_k, used_k, max_q, max_k, pages, scale, causal, window):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return _fwd(
        q, k, v, None, None, None, None, cu_q, cu_k, None, None, used_k, max_q, max_k, pages, None, None, None, None, None,
        None, None, None, scale, causal, window[0], window[1], 0.0, True, None, 0, None, 0, None, 1, 0, None,
    )[0]


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False, window_size=(-1, -1)
):
    return _run(
        q, k, v, cu_seqlens_q, cu_seqlens_k, None, max_seqlen_q, max_seqlen_k, None, softmax_scale, causal, window_size
    )


def flash_attn_func(q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1)):
    batch, tokens = q.shape[:2]
    ends = torch.arange(0, (batch + 1) * tokens, tokens, dtype=torch.int32, device=q.device)
    q, k, v = (part.flatten(0, 1) for part in (q, k, v))
    return _run(q, k, v, ends, ends, None, tokens, tokens, None, softmax_scale, causal, window_size).unflatten(0, (batch, tokens))


def flash_attn_with_kvcache(
    q, k_cache, v_cache, k=None, v=None, cache_seqlens=None, page_table=None, softmax_scale=None, causal=False, window_size=(-1, -1)
):
    """A token of each request `[batch, 1, heads, dim]`; those of padding have -1 tokens in the cache, and are written to the last page."""
    page_size = k_cache.shape[1]
    before = cache_seqlens.clamp(min=0).long()
    page = page_table.gather(1, (before // page_size).unsqueeze(1)).squeeze(1).long()
    slots = torch.where(cache_seqlens >= 0, page * page_size + before % page_size, k_cache.shape[0] * page_size - 1)
    k_cache.flatten(0, 1).index_copy_(0, slots, k.flatten(0, 1))
    v_cache.flatten(0, 1).index_copy_(0, slots, v.flatten(0, 1))
    ends = torch.arange(len(q) + 1, dtype=torch.int32, device=q.device)
    longest = page_table.shape[1] * page_size
    used = (cache_seqlens + 1).to(torch.int32)
    return _run(
        q.flatten(0, 1), k_cache, v_cache, ends, None, used, 1, longest, page_table, softmax_scale, causal, window_size
    ).unsqueeze(1)
'''


def provide(library: Path | None) -> str:
    """Makes `flash_attn_interface` importable; what is in the way, if it is not."""
    if importlib.util.find_spec("flash_attn_interface"):
        return ""
    if library is None:
        return "the package flash-attn-3 is not installed, and --flash-attn-3 names no library of vLLM's wheel"
    if not library.is_file():
        return f"there is no file {library}"
    folder = Path(tempfile.mkdtemp(prefix="flash-attn-3-"))
    unpacked = folder / "_vllm_fa3_C.abi3.so"
    if library.suffix == ".xz":
        with lzma.open(library) as packed, unpacked.open("wb") as whole:
            shutil.copyfileobj(packed, whole, 1 << 22)
    elif library.suffix in (".zip", ".whl"):
        with zipfile.ZipFile(library) as packed:
            (name,) = [name for name in packed.namelist() if name.endswith("_vllm_fa3_C.abi3.so")]
            with packed.open(name) as inside, unpacked.open("wb") as whole:
                shutil.copyfileobj(inside, whole, 1 << 22)
    else:
        unpacked = library.resolve()
    (folder / "flash_attn_interface.py").write_text(_INTERFACE.format(library=str(unpacked)))
    distribution = folder / "flash_attn_3-3.0.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: flash-attn-3\nVersion: 3.0.0\n")
    (distribution / "top_level.txt").write_text("flash_attn_interface\n")
    (distribution / "RECORD").write_text("flash_attn_interface.py,,\n")
    sys.path.insert(0, str(folder))
    try:
        import flash_attn_interface  # noqa: F401
    except Exception as error:
        sys.path.remove(str(folder))
        return f"{library} cannot be used here: {error}"
    return ""
