"""The peers: how each is found, and how it is called.

`find_...` says which version there is, or raises. `..._calls` plans a batch and gives ways to call the peer, by name; a call gives the output.
"""
import functools
import inspect
import os

from batches import LeftOut, csr, levels, torch

FLASHINFER_WORKSPACE = 512 << 20


def find_flashinfer(options):
    import flashinfer
    return flashinfer.__version__


@functools.lru_cache(maxsize=1)
def flashinfer_workspace(device):
    return torch.empty(FLASHINFER_WORKSPACE, dtype=torch.uint8, device=device)


def flashinfer_decode_calls(batch, options):
    import flashinfer
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(flashinfer_workspace(batch.device), "NHD", use_tensor_cores=True)
    wrapper.plan(*map(batch.ints, csr(batch.rows, batch.len_list, batch.page)), batch.hq, batch.hkv, batch.dim, batch.page,
                 q_data_type=batch.dtype, kv_data_type=batch.kv_dtype)
    return {"": lambda: wrapper.run(batch.q, (batch.k, batch.v))}


def flashinfer_cascade_calls(batch, options):
    import flashinfer
    tree = levels(batch.rows, batch.len_list)
    if len(tree) == 1:
        raise LeftOut("one level: there is nothing to cascade")
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(len(tree), flashinfer_workspace(batch.device), "NHD")
    query_begins, page_begins, pages, last = [], [], [], []
    for depth, nodes in enumerate(tree):
        ends = [batch.len_list[begin] - (len(batch.rows[begin]) - 1) * batch.page for begin, _, _ in nodes]
        begins, indices, _ = csr([node[2] for node in nodes], [0] * len(nodes), batch.page)
        query_begins.append(batch.ints([0, *(end for _, end, _ in nodes)]))
        page_begins.append(batch.ints(begins))
        pages.append(batch.ints(indices))
        last.append(batch.ints(ends if depth + 1 == len(tree) else [batch.page] * len(nodes)))
    types = dict(q_data_type=batch.dtype, kv_data_type=batch.kv_dtype)
    if "kv_data_type" not in inspect.signature(wrapper.plan).parameters:
        batch.no_fp8()
        del types["kv_data_type"]
    wrapper.plan(query_begins, page_begins, pages, last, batch.hq, batch.hkv, batch.dim, batch.page, **types)
    return {f"{len(tree)} levels": lambda: wrapper.run(batch.q, (batch.k, batch.v))}


def find_fa3(options):
    if torch.cuda.get_device_capability(options.device)[0] != 9:
        raise LeftOut("is for compute capability 9 only")
    if options.fa3:
        torch.ops.load_library(options.fa3)
        return os.path.basename(options.fa3)
    try:
        import flash_attn_interface
        return getattr(flash_attn_interface, "__version__", "flash_attn_interface")
    except ImportError:
        from vllm.vllm_flash_attn import flash_attn_varlen_func  # noqa: F401
        import vllm
        return f"of vllm {vllm.__version__}"


def fa3_calls(batch, options):
    batch.no_fp8("takes K and V of FP8 only beside a query of FP8")
    out = torch.empty_like(batch.q)
    if options.fa3:
        none = (None,) * 8

        def run():
            torch.ops._vllm_fa3_C.fwd(batch.q, batch.k, batch.v, None, None, None, out, batch.query_begins, None, None, None, batch.lens, 1,
                                      batch.longest, batch.table, *none, batch.scale, True, -1, -1, 0.0, True, None, 0, None, 0, None, 1,
                                      0, None)
            return out
        return {"": run}
    try:
        from flash_attn_interface import flash_attn_with_kvcache
    except ImportError:
        from vllm.vllm_flash_attn import flash_attn_varlen_func
        arguments = dict(max_seqlen_q=1, cu_seqlens_q=batch.query_begins, max_seqlen_k=batch.longest, seqused_k=batch.lens,
                         block_table=batch.table, softmax_scale=batch.scale, causal=True, fa_version=3, out=out)

        def run():
            flash_attn_varlen_func(batch.q, batch.k, batch.v, **arguments)
            return out
        return {"": run}
    query = batch.q.unsqueeze(1)

    def run():
        found = flash_attn_with_kvcache(query, batch.k, batch.v, cache_seqlens=batch.lens, page_table=batch.table,
                                        softmax_scale=batch.scale, causal=True)
        return found[0] if isinstance(found, tuple) else found
    return {"": run}


def vllm_unified_attention():
    try:
        from vllm.v1.attention.ops.triton_unified_attention import unified_attention
    except ImportError:
        from vllm.attention.ops.triton_unified_attention import unified_attention
    return unified_attention


def find_vllm(options):
    import vllm
    vllm_unified_attention()
    return vllm.__version__


def vllm_calls(batch, options):
    unified, out, segments = vllm_unified_attention(), torch.empty_like(batch.q), 16
    one = torch.ones((), dtype=torch.float32, device=batch.device).expand(batch.size, batch.hkv)
    scalars = torch.empty(batch.size, batch.hq, segments, dtype=torch.float32, device=batch.device)
    width = 1 << (batch.dim - 1).bit_length()
    arguments = dict(
        q=batch.q, k=batch.k, v=batch.v, out=out, cu_seqlens_q=batch.query_begins, max_seqlen_q=1, seqused_k=batch.lens,
        max_seqlen_k=batch.longest, softmax_scale=batch.scale, causal=True, window_size=(-1, -1), block_table=batch.table, softcap=0.0,
        q_descale=None, k_descale=one, v_descale=one,
        # As vLLM sets them: small batches split the KV of a request into segments.
        seq_threshold_3D=128 // batch.hkv, num_par_softmax_segments=segments,
        softmax_segm_output=torch.empty(*scalars.shape, width, dtype=torch.float32, device=batch.device),
        softmax_segm_max=scalars, softmax_segm_expsum=torch.empty_like(scalars))
    known = inspect.signature(unified).parameters
    arguments = {name: value for name, value in arguments.items() if name in known}

    def run():
        unified(**arguments)
        return out
    return {"": run}


def find_flex(options):
    from torch.nn.attention.flex_attention import flex_attention  # noqa: F401
    return torch.__version__


def flex_calls(batch, options):
    from torch.nn.attention.flex_attention import flex_attention
    batch.no_fp8()
    q, k, v = batch.gathered
    torch._dynamo.reset()  # One shape each: without this, dynamo stops to compile after some of them.
    compiled = torch.compile(flex_attention, dynamic=False)
    return {"gathered": lambda: compiled(q, k, v, scale=batch.scale, enable_gqa=batch.hq != batch.hkv)}


def find_sdpa(options):
    return torch.__version__


def sdpa_calls(batch, options):
    batch.no_fp8()
    q, k, v = batch.gathered

    def run():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=batch.scale, enable_gqa=batch.hq != batch.hkv)
    calls = {"gathered": run}
    if batch.device.type == "cuda":
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def with_backend(backend):
            with sdpa_kernel(backend):
                return run()
        for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION"):
            if backend := getattr(SDPBackend, name, None):
                calls[f"gathered, {name.lower()}"] = functools.partial(with_backend, backend)
    return calls


# Name, how it is found, how it is called, and whether it needs a GPU. Those that gather come last: their copies are kept.
PEERS = [
    ("flashinfer decode", find_flashinfer, flashinfer_decode_calls, True),
    ("flashinfer cascade", find_flashinfer, flashinfer_cascade_calls, True),
    ("flash-attention 3", find_fa3, fa3_calls, True),
    ("vllm triton", find_vllm, vllm_calls, True),
    ("torch flex", find_flex, flex_calls, True),
    ("torch sdpa", find_sdpa, sdpa_calls, False),
]
