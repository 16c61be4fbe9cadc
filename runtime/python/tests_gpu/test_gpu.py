"""On a machine with a GPU, torch and NVRTC: `python -m pytest tests_gpu`. Nothing else collects it, so it never passes by doing nothing."""

import numpy as np
import pytest
import torch
from reference import angles, attention, close, random_batch
from tilewright import Attention, CudaError, Heads, merge_states

HEADS = Heads(16, 4, 128)
DEVICE = torch.device("cuda", 0)


def on_gpu(batch, dtype, layout="NHD"):
    keys, values = (torch.from_numpy(cache).to(DEVICE, dtype) for cache in batch.cache(layout))
    return torch.from_numpy(batch.q).to(DEVICE, dtype), keys, values


def in_f64(batch, q, keys, values, layout="NHD", **options):
    wide = [tensor.double().cpu().numpy() for tensor in (q, keys, values)]
    if layout == "HND":
        wide[1:] = [cache.transpose(0, 2, 1, 3) for cache in wide[1:]]
    return attention(*wide, batch.rows, **options)


@pytest.mark.parametrize("page_size", [1, 5, 16, 64])
@pytest.mark.parametrize(
    "heads",
    [HEADS, Heads(6, 6, 64), Heads(6, 2, 96), Heads(14, 2, 128), Heads(4, 1, 192), Heads(4, 1, 256)],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_random_batches_are_right_in_both_layouts(dtype, heads, page_size):
    for layout in ("NHD", "HND"):
        made = Attention(heads, page_size, dtype=dtype, kv_layout=layout, device=DEVICE)
        for seed in range(2):
            batch = random_batch(seed, heads, page_size)
            q, keys, values = on_gpu(batch, dtype, layout)
            out, lse = made.plan(*batch.csr).run(q, (keys, values), return_lse=True)
            expected, expected_lse = in_f64(batch, q, keys, values, layout)
            close(out.double().cpu(), expected, made.dtype)
            close(lse.double().cpu(), expected_lse, made.dtype)


@pytest.mark.parametrize("options", [{"window": 20}, {"softcap": 1.5}, {"window": 33, "softcap": 3.0}], ids=str)
@pytest.mark.parametrize("sinks", [False, True], ids=["plain", "sinks"])
def test_masks_and_sinks_are_right(options, sinks):
    batch = random_batch(7, HEADS)
    q, keys, values = on_gpu(batch, torch.float16)
    sinks = torch.linspace(-3, 3, HEADS.query, device=DEVICE) if sinks else None
    plan = Attention(HEADS, 16, dtype=torch.float16, device=DEVICE, **options).plan(*batch.csr)
    out = plan.run(q, (keys, values), sinks=sinks)
    expected, _ = in_f64(batch, q, keys, values, sinks=None if sinks is None else sinks.cpu().numpy(), **options)
    close(out.double().cpu(), expected, "float16")


@pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("per_head", [False, True])
def test_fp8_caches_are_scaled(per_head, kv_dtype):
    batch = random_batch(8, HEADS)
    q, keys, values = on_gpu(batch, torch.bfloat16)
    fp8 = [cache.float().to(kv_dtype) for cache in (keys, values)]
    count = HEADS.kv if per_head else 1
    scales = [torch.linspace(0.5, 2, count, device=DEVICE) * factor for factor in (0.5, 2)]
    plan = Attention(HEADS, 16, dtype=torch.bfloat16, kv_dtype=kv_dtype, device=DEVICE).plan(*batch.csr)
    wide = [cache.double() * scale.double()[:, None] for cache, scale in zip(fp8, scales)]
    for cache in (fp8, [cache.view(torch.uint8) for cache in fp8]):
        out = plan.run(q, tuple(cache), k_scale=scales[0], v_scale=scales[1])
        close(out.double().cpu(), in_f64(batch, q, *wide)[0], "bfloat16")
    with pytest.raises(ValueError, match="give a float32 tensor on cuda:0"):
        plan.run(q, tuple(fp8), k_scale=1.0, v_scale=1.0)


def test_strided_tensors_need_no_copy():
    batch = random_batch(6, HEADS)
    q, keys, values = on_gpu(batch, torch.float16)
    plan = Attention(HEADS, 16, dtype=torch.float16, device=DEVICE).plan(*batch.csr)
    expected = plan.run(q, (keys, values))
    qkv = torch.zeros(len(batch.rows), 24 * 128, dtype=torch.float16, device=DEVICE)
    qkv[:, : 16 * 128] = q.flatten(1)
    out = torch.full((len(batch.rows), 16, 160), torch.nan, dtype=torch.float16, device=DEVICE)
    both = torch.stack([keys, values], dim=1)
    plan.run(qkv[:, : 16 * 128].unflatten(1, (16, 128)), both, out[..., :128])
    assert torch.equal(out[..., :128], expected) and out[..., 128:].isnan().all()
    odd = torch.zeros(q.numel() + 4, dtype=torch.float16, device=DEVICE)[4:].view_as(q)
    with pytest.raises(ValueError, match="`query` is .*: it must be a multiple of 16 bytes"):
        plan.run(odd, (keys, values))


def test_what_lies_elsewhere_is_said():
    batch = random_batch(3, HEADS)
    q, keys, values = on_gpu(batch, torch.float16)
    made = Attention(HEADS, 16, dtype=torch.float16, device=DEVICE)
    plan = made.plan(*batch.csr)
    with pytest.raises(ValueError, match="`q` is on the CPU, the attention on cuda:0"):
        plan.run(q.cpu(), (keys, values))
    with pytest.raises(ValueError, match="`seq_lens` is on cuda:0: plans are made on the host"):
        made.plan(block_tables=[[0]], seq_lens=torch.tensor([3], dtype=torch.int32, device=DEVICE))
    with pytest.raises(ValueError, match=r"the plan reads page \d+, but `kv_cache` has 3 pages"):
        plan.run(q, (keys[:3], values[:3]))


def test_a_run_is_ordered_by_the_current_stream():
    batch = random_batch(4, HEADS)
    q, keys, values = on_gpu(batch, torch.float16)
    plan = Attention(HEADS, 16, dtype=torch.float16, device=DEVICE).plan(*batch.csr)
    expected = plan.run(q, (keys, values))
    late = torch.zeros_like(q)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    plan.upload(stream)  # which may allocate, and wait for that
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        late.copy_(q)
        out = plan.run(late, (keys, values))
        assert not stream.query(), "the call waited for the device"
    stream.synchronize()
    assert torch.equal(out, expected)


def test_graphs_are_captured_and_replayed_with_new_lengths():
    batch = random_batch(5, HEADS)
    q, keys, values = on_gpu(batch, torch.float16)
    tables, seq_lens = batch.block_tables
    made = Attention(HEADS, 16, dtype=torch.float16, device=DEVICE)
    plan = made.plan(block_tables=tables, seq_lens=seq_lens)
    graph, out = torch.cuda.CUDAGraph(), torch.full_like(q, torch.nan)
    refused = torch.cuda.CUDAGraph()
    with (
        pytest.raises(CudaError, match=r"captured and a plan is to be copied.*`upload\(\)`"),
        torch.cuda.graph(refused),
    ):
        plan.run(q, (keys, values), out)
    plan.upload()
    with torch.cuda.graph(graph):
        plan.run(q, (keys, values), out)
    torch.cuda.synchronize()
    assert out.isnan().all()
    for shift in range(3):
        lens = np.where(seq_lens, (seq_lens - 1) // 16 * 16 + 1 + 5 * shift, 0).astype(np.int32)
        plan.set_lengths(lens)
        plan.upload()
        q.copy_(torch.randn_like(q))
        graph.replay()
        rows = [(pages, int(tokens)) for (pages, _), tokens in zip(batch.rows, lens)]
        wide = [tensor.double().cpu().numpy() for tensor in (q, keys, values)]
        close(out.double().cpu(), attention(*wide, rows)[0], "float16")


def test_live_plans_follow_a_batch():
    batch = random_batch(9, HEADS)
    q, keys, values = on_gpu(batch, torch.bfloat16)
    live = Attention(HEADS, 16, dtype=torch.bfloat16, device=DEVICE).live_plan()
    rows = []
    for request, (pages, tokens) in enumerate(batch.rows):
        rows.append((pages, tokens))
        if tokens:
            live.add(request, pages, tokens)
        count = live.update()
        if count == len(rows):
            out = live.run(q[:count], (keys, values))
            wide = [tensor.double().cpu().numpy() for tensor in (q[:count], keys, values)]
            close(out.double().cpu(), attention(*wide, rows)[0], "bfloat16")


def test_states_are_merged():
    states = [
        (torch.full((5, 16, 128), value, dtype=torch.float16, device=DEVICE), torch.zeros(5, 16, device=DEVICE))
        for value in (1.0, 3.0)
    ]
    states.append((torch.full_like(states[0][0], torch.nan), torch.full((5, 16), -torch.inf, device=DEVICE)))
    out, lse = merge_states(states)
    assert (out == 2).all() and torch.allclose(lse, torch.tensor(2.0, device=DEVICE).log())
    with pytest.raises(ValueError, match="a launch merges 8 at most"):
        merge_states(states * 3)


def appended(made, device, k, v, layout, kv_dtype, slots, **options):
    """A cache of marks, and what is appended to it."""
    shape = (6, 2, 16, HEADS.kv, 128) if layout == "NHD" else (6, 2, HEADS.kv, 16, 128)
    cache = torch.full(shape, 5, dtype=torch.float32).to(device, kv_dtype or k.dtype)
    if kv_dtype:
        options |= {"k_scale": torch.tensor([0.5], device=device), "v_scale": torch.tensor([0.3], device=device)}
    on_device = {name: value.to(device) if torch.is_tensor(value) else value for name, value in options.items()}
    made.append(k.to(device), v.to(device), cache, slots.to(device), **on_device)
    return cache.cpu().view(torch.uint8)


@pytest.mark.parametrize("kv_dtype", [None, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_appends_are_those_of_the_cpu(layout, dtype, kv_dtype):
    made = [Attention(HEADS, 16, dtype=dtype, kv_dtype=kv_dtype, kv_layout=layout, device=d) for d in ("cpu", DEVICE)]
    qkv = torch.randn(40, 24, 128, generator=torch.Generator().manual_seed(3)).to(dtype)
    k, v = qkv[:, 16:20], qkv[:, 20:]
    slots = torch.randperm(96, generator=torch.Generator().manual_seed(4))[:40]
    slots[::7] = -1
    positions, table = torch.arange(40) * 2, torch.from_numpy(angles(100, 128))
    for options in (
        {},
        {"cos_sin": table, "positions": positions},
        {"cos_sin": table, "seq_lens": positions.int() + 1, "interleaved": True},
        {"cos_sin": table[:, :32].contiguous(), "positions": positions},
    ):
        on_cpu, on_gpu = (
            appended(attention, device, k, v, layout, kv_dtype, slots, **options)
            for attention, device in zip(made, ("cpu", DEVICE))
        )
        assert torch.equal(on_cpu, on_gpu), options
    with pytest.raises(ValueError, match="`slots` is a list: on a GPU, give an int64 tensor on cuda:0"):
        made[1].append(k.to(DEVICE), v.to(DEVICE), torch.zeros(0), [0] * 40)


def test_appends_are_captured_with_what_they_feed():
    made = Attention(HEADS, 16, dtype=torch.float16, device=DEVICE)
    cache = torch.full((4, 2, 16, 4, 128), torch.nan, dtype=torch.float16, device=DEVICE)
    k, v = torch.zeros(2, 2, 4, 128, dtype=torch.float16, device=DEVICE)
    q, out = torch.zeros(2, 2, 16, 128, dtype=torch.float16, device=DEVICE)
    slots, seq_lens = torch.full((2,), -1, device=DEVICE), torch.zeros(2, dtype=torch.int32, device=DEVICE)
    table = torch.from_numpy(angles(32, 128)).to(DEVICE)
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(CudaError, match="captured and a kernel is to be compiled"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        made.append(k, v, cache, slots, cos_sin=table, seq_lens=seq_lens)
    made.append(k, v, cache, slots, cos_sin=table, seq_lens=seq_lens)  # compiles; nothing has a slot yet
    plan = made.plan(block_tables=[[3], [1]], seq_lens=[1, 1])
    plan.upload()
    with torch.cuda.graph(graph):
        made.append(k, v, cache, slots, cos_sin=table, seq_lens=seq_lens)
        plan.run(q, cache, out)
    values = torch.randn(10, 2, 4, 128, device=DEVICE).half()
    for step in range(10):
        plan.set_lengths([step + 1] * 2)
        plan.upload()
        slots.copy_(torch.tensor([3 * 16 + step, 16 + step]))
        seq_lens.fill_(step + 1)
        v.copy_(values[step])
        k.normal_()
        graph.replay()
        expected = values[: step + 1].float().mean(0).repeat_interleave(4, dim=1)  # the query is 0
        torch.testing.assert_close(out.float(), expected, atol=2e-3, rtol=2e-3)


@torch.no_grad()
def test_models_compile():
    batch = random_batch(2, HEADS)
    q, keys, values = on_gpu(batch, torch.float16)
    made = Attention(HEADS, 16, dtype=torch.float16, device=DEVICE)

    @torch.compile(fullgraph=True)
    def step(q, keys, values, plan):
        return plan.run(q * 2, (keys, values)).relu()

    tables, seq_lens = batch.block_tables
    for shorter in range(4):
        plan = made.plan(block_tables=tables, seq_lens=np.maximum(seq_lens - 20 * shorter, 0).astype(np.int32))
        torch.testing.assert_close(step(q, keys, values, plan), plan.run(q * 2, (keys, values)).relu())


def test_the_current_device_stays():
    before = torch.cuda.current_device()
    for number in range(torch.cuda.device_count()):
        device = torch.device("cuda", number)
        plan = Attention(HEADS, 16, dtype=torch.float16, device=device).plan([0, 1], [0], [4])
        q = torch.zeros(1, 16, 128, dtype=torch.float16, device=device)
        cache = torch.zeros(1, 2, 16, 4, 128, dtype=torch.float16, device=device)
        assert not plan.run(q, cache).any()
        del plan
        assert torch.cuda.current_device() == before
