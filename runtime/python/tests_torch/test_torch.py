"""torch tensors on the CPU, the op, and torch.compile."""

import numpy as np
import pytest
import torch
from reference import attention, close, random_batch
from tilewright import Attention, Heads, merge_states

HEADS = Heads(8, 2, 64)


def tensors(batch, dtype=torch.float32, layout="NHD"):
    keys, values = (torch.from_numpy(cache).to(dtype) for cache in batch.cache(layout))
    return torch.from_numpy(batch.q).to(dtype), keys, values


def expected_of(batch, q, keys, values, **options):
    wide = [tensor.double().numpy() for tensor in (q, keys, values)]
    return attention(*wide, batch.rows, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_tensors_of_every_dtype_are_right(dtype):
    batch = random_batch(0, HEADS)
    q, keys, values = tensors(batch, dtype)
    made = Attention(HEADS, 16, dtype=dtype, device=torch.device("cpu"))
    plan = made.plan(*(torch.from_numpy(part) for part in batch.csr))
    out, lse = plan.run(q, (keys, values), return_lse=True)
    assert (out.dtype, lse.dtype, out.shape) == (dtype, torch.float32, q.shape)
    expected, expected_lse = expected_of(batch, q, keys, values)
    close(out.double(), expected, made.dtype)
    close(lse.double(), expected_lse, made.dtype)


@pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_fp8_caches_and_scales_of_torch(kv_dtype):
    batch = random_batch(1, HEADS)
    q, keys, values = tensors(batch, torch.bfloat16)
    fp8 = [cache.float().to(kv_dtype) for cache in (keys, values)]
    plan = Attention(HEADS, 16, dtype=torch.bfloat16, kv_dtype=kv_dtype).plan(*batch.csr)
    scales = torch.tensor([0.5, 0.25]), torch.tensor([2.0, 3.0])
    out = plan.run(q, tuple(fp8), k_scale=scales[0], v_scale=scales[1])
    wide = [cache.double() * scale.double()[:, None] for cache, scale in zip(fp8, scales)]
    close(out.double(), expected_of(batch, q, *wide)[0], "bfloat16")
    bits = tuple(cache.view(torch.uint8) for cache in fp8)
    assert torch.equal(plan.run(q, bits, k_scale=scales[0], v_scale=scales[1]), out)


def test_views_of_fused_tensors_need_no_copy():
    batch = random_batch(2, HEADS)
    q, keys, values = tensors(batch)
    plan = Attention(HEADS, 16, dtype="float32").plan(*batch.csr)
    expected = plan.run(q, (keys, values))
    qkv = torch.zeros(len(batch.rows), 12 * 64)
    qkv[:, : 8 * 64] = q.flatten(1)
    both = torch.stack([keys, values], dim=1)
    out = torch.full((len(batch.rows), 8, 96), torch.nan)
    assert plan.run(qkv[:, : 8 * 64].unflatten(1, (8, 64)), both, out[..., :64]) is not None
    assert torch.equal(out[..., :64], expected) and out[..., 64:].isnan().all()
    hnd = Attention(HEADS, 16, dtype="float32", kv_layout="HND").plan(*batch.csr)
    assert torch.equal(hnd.run(q, (keys.transpose(1, 2), values.transpose(1, 2))), expected)


def test_what_does_not_fit_is_said():
    batch = random_batch(3, HEADS)
    q, keys, values = tensors(batch)
    plan = Attention(HEADS, 16, dtype="float32").plan(*batch.csr)
    for wrong, words in [
        (q.half(), "`q` is float16, float32 is needed"),
        (q.to("meta"), "`q` is on the device meta: only `cpu` and `cuda` tensors"),
        (q.clone().requires_grad_(), "`q` needs gradients, which decode attention does not compute"),
        (q[:, ::2].repeat(1, 1, 2), r"\[9, 8, 64\] is needed"),
    ]:
        with pytest.raises(ValueError, match=words):
            plan.run(wrong, (keys, values))
    with torch.no_grad():
        plan.run(q.clone().requires_grad_(), (keys, values))
    with pytest.raises(ValueError, match="`kv_cache.0.` has the layout torch.sparse_coo"):
        plan.run(q, (keys.to_sparse(), values))
    with pytest.raises(ValueError, match="`indptr` is int64, int32 is needed"):
        Attention(HEADS, 16, dtype="float32").plan(torch.tensor([0, 1]), [0], [1])


def test_states_of_torch_are_merged():
    states = [(torch.full((2, 3, 64), value).half(), torch.zeros(2, 3)) for value in (1.0, 3.0)]
    out, lse = merge_states(states)
    assert out.dtype == torch.float16 and (out == 2).all() and torch.allclose(lse, torch.tensor(2.0).log())


@pytest.mark.parametrize("return_lse", [False, True])
@pytest.mark.parametrize("sinks", [False, True])
def test_the_op_keeps_to_its_schema(return_lse, sinks):
    batch = random_batch(4, HEADS)
    q, keys, values = tensors(batch)
    plan = Attention(HEADS, 16, dtype="float32").plan(*batch.csr)
    sinks = torch.linspace(-1, 1, 8) if sinks else None
    arguments = (q, keys, values, plan.handle, sinks, None, None, return_lse)
    torch.library.opcheck(torch.ops.tilewright.decode.default, arguments)
    out, lse = torch.ops.tilewright.decode(*arguments)
    wanted = plan.run(q, (keys, values), sinks=sinks, return_lse=True)
    assert torch.equal(out, wanted[0]) and (torch.equal(lse, wanted[1]) if return_lse else lse.numel() == 0)


def test_a_plan_that_is_gone_is_said():
    made = Attention(HEADS, 16, dtype="float32")
    handle = made.plan([0, 1], [0], [4]).handle
    q, cache = torch.zeros(1, 8, 64), torch.zeros(1, 16, 2, 64)
    with pytest.raises(ValueError, match=f"no plan has the handle {handle}: it was freed"):
        torch.ops.tilewright.decode(q, cache, cache, handle)


class Layer(torch.nn.Module):
    """What a model does around attention."""

    def __init__(self, keys, values):
        super().__init__()
        self.keys, self.values = keys, values
        self.project = torch.nn.Linear(512, 512, bias=False)

    def forward(self, x, plan):
        q = self.project(x).unflatten(-1, (8, 64))
        return plan.run(q, (self.keys, self.values)).flatten(1).relu()

    def forward_by_handle(self, x, handle):
        q = self.project(x).unflatten(-1, (8, 64))
        return torch.ops.tilewright.decode(q, self.keys, self.values, handle)[0].flatten(1).relu()


@torch.no_grad()
def test_models_compile_without_graph_breaks_and_one_graph_serves_every_step():
    batch = random_batch(5, HEADS)
    _, keys, values = tensors(batch)
    layer, made = Layer(keys, values), Attention(HEADS, 16, dtype="float32")
    tables, seq_lens = batch.block_tables
    compiles = []

    def backend(graph, inputs):
        compiles.append(graph)
        return torch._inductor.compile(graph, inputs)

    by_plan = torch.compile(layer, fullgraph=True, backend=backend)
    by_handle = torch.compile(layer.forward_by_handle, fullgraph=True, backend=backend)
    for compiled in (by_plan, by_handle):
        compiles.clear()
        for step in range(6):
            shorter = np.maximum(seq_lens - 7 * step, 0).astype(np.int32)
            plan = made.plan(block_tables=tables, seq_lens=shorter)
            x = torch.randn(len(batch.rows), 512)
            out = compiled(x, plan if compiled is by_plan else plan.handle)
            torch.testing.assert_close(out, layer(x, plan), rtol=1e-5, atol=1e-5)
        # A second one, in which the handle is a variable.
        assert len(compiles) <= 2, len(compiles)
    kinds = {node.target for node in compiles[0].graph.nodes if node.op == "call_function"}
    assert torch.ops.tilewright.decode in kinds or torch.ops.tilewright.decode.default in kinds


@torch.no_grad()
def test_outputs_lse_and_live_plans_compile():
    batch = random_batch(6, HEADS)
    q, keys, values = tensors(batch)
    live = Attention(HEADS, 16, dtype="float32").live_plan()
    for request, (pages, tokens) in enumerate(batch.rows):
        if tokens:
            live.add(request, pages, tokens)
    live.update()
    q = q[: live.batch]

    @torch.compile(fullgraph=True)
    def step(q, keys, values, out):
        result, lse = live.run(q * 2, (keys, values), out, return_lse=True)
        return result + 1, lse.exp()

    out = torch.empty_like(q)
    result, sums = step(q, keys, values, out)
    wanted, lse = live.run(q * 2, (keys, values), return_lse=True)
    torch.testing.assert_close(result, wanted + 1)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(sums, lse.exp())
