"""The classes that vLLM uses, over vLLM's own ones, without a GPU: attention is computed by Tilewright's CPU backend.

FlashAttention's kernels need a GPU: what is delegated to it is noted instead of computed.
"""

import dataclasses
import inspect
import json
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tilewright.vllm
import torch
from reference import attention, close, random_batch
from tilewright import Attention, Heads, Plan
from tilewright._vllm_backend import TilewrightBackend, TilewrightImpl, TilewrightMetadataBuilder, pages_of
from tilewright._vllm_tables import HostTables, _address, _count_writes
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.attention import Attention as AttentionLayer
from vllm.v1.attention.backend import AttentionCGSupport, CommonAttentionMetadata
from vllm.v1.attention.backends.flash_attn import FlashAttentionImpl, FlashAttentionMetadataBuilder
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.kv_cache_interface import FullAttentionSpec

HEADS, PAGE = Heads(8, 2, 64), 16


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """vLLM's own configuration of a small model."""
    folder = tmp_path_factory.mktemp("model")
    model = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HEADS.query * HEADS.dim,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS.query,
        "num_key_value_heads": HEADS.kv,
        "head_dim": HEADS.dim,
        "vocab_size": 512,
        "max_position_embeddings": 1024,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(model))
    options = {"tokenizer": str(folder), "skip_tokenizer_init": True, "dtype": "bfloat16", "max_model_len": 1024}
    return VllmConfig(
        model_config=ModelConfig(model=str(folder), **options),
        cache_config=CacheConfig(block_size=PAGE),
        device_config=DeviceConfig(device="cpu"),
    )


@pytest.fixture
def layers(config):
    """Two of vLLM's layers with our implementation."""
    with set_current_vllm_config(config):
        made = [
            AttentionLayer(
                HEADS.query,
                HEADS.dim,
                HEADS.dim**-0.5,
                HEADS.kv,
                cache_config=config.cache_config,
                prefix=f"model.layers.{number}.attn",
                attn_backend=TilewrightBackend,
            )
            for number in range(2)
        ]
        yield made
    for layer in made:
        del config.compilation_config.static_forward_context[layer.layer_name]


@pytest.fixture
def delegated(monkeypatch):
    """Calls of FlashAttention's forward."""
    calls = []

    def forward(impl, layer, query, key, value, kv_cache, metadata, output, *scales):
        calls.append((impl, query, impl.supports_quant_query_input))
        return output.fill_(7)

    monkeypatch.setattr(FlashAttentionImpl, "forward", forward)
    return calls


def builder_of(config, layers):
    spec = FullAttentionSpec(block_size=PAGE, num_kv_heads=HEADS.kv, head_size=HEADS.dim, dtype=torch.bfloat16)
    with set_current_vllm_config(config):
        return TilewrightMetadataBuilder(spec, [layer.layer_name for layer in layers], config, torch.device("cpu"))


# As model runners have them: in one place, whatever the batch.
DEVICE_LENS = torch.zeros(1024, dtype=torch.int32)


def common_of(batch, query_lens=None, rows=None):
    """vLLM's metadata of a batch, padded to some rows as full graphs are."""
    tables, lens = batch.block_tables
    count = len(lens)
    rows = rows or count
    query_lens = [1] * count if query_lens is None else query_lens
    tables = np.concatenate([tables, np.full((rows - count, tables.shape[1]), 99, np.int32)])
    lens = np.concatenate([lens, np.zeros(rows - count, np.int32)])
    starts = np.cumsum([0, *query_lens, *[0] * (rows - count)], dtype=np.int32)
    tokens = sum(query_lens) + rows - count
    DEVICE_LENS[:rows] = torch.from_numpy(lens)
    return CommonAttentionMetadata(
        query_start_loc=torch.from_numpy(starts),
        query_start_loc_cpu=torch.from_numpy(starts),
        seq_lens=DEVICE_LENS[:rows],
        num_reqs=rows,
        num_actual_tokens=tokens,
        max_query_len=max(query_lens),
        max_seq_len=int(lens.max()),
        block_table_tensor=torch.from_numpy(tables),
        slot_mapping=torch.zeros(tokens, dtype=torch.int64),
        seq_lens_cpu_upper_bound=torch.from_numpy(lens),
    )


def cache_of(batch, dtype=torch.bfloat16):
    """The batch's K and V as this version of vLLM has them."""
    keys, values = (torch.from_numpy(cache).to(dtype) for cache in batch.cache("NHD"))
    if hasattr(TilewrightBackend, "get_kv_cache_shape") and len(_shape(batch)) == 5:
        return torch.stack([keys, values], dim=1)
    return torch.cat([keys, values], dim=-1).transpose(1, 2).contiguous()


def _shape(batch):
    """Of a layer's cache, as this version says it."""
    blocks, size = batch.keys.shape[:2]
    try:
        return TilewrightBackend.get_kv_cache_shape(blocks, size, HEADS.kv, HEADS.dim)
    except (NotImplementedError, TypeError):
        return (blocks, HEADS.kv, size, 2 * HEADS.dim)


def run(layer, batch, metadata, rows, cache=None):
    query = torch.zeros(rows, HEADS.query, HEADS.dim, dtype=torch.bfloat16)
    query[: len(batch.q)] = torch.from_numpy(batch.q)
    out = torch.full_like(query, torch.nan)
    key = torch.zeros(rows, HEADS.kv, HEADS.dim, dtype=torch.bfloat16)
    cache = cache_of(batch) if cache is None else cache
    found = layer.impl.forward(layer, query, key, key, cache, metadata, out)
    return query.double().numpy()[: len(batch.q)], found


def test_vllm_finds_the_plugin():
    (found,) = [entry for entry in entry_points(group="vllm.general_plugins") if entry.name == "tilewright"]
    assert found.load() is tilewright.vllm.register
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    assert AttentionBackendEnum.CUSTOM.get_class() is TilewrightBackend
    assert AttentionBackendEnum[TilewrightBackend.get_name()] is AttentionBackendEnum.CUSTOM
    assert TilewrightBackend.get_impl_cls() is TilewrightImpl
    assert not TilewrightBackend.supports_batch_invariance()
    support = TilewrightBackend.get_builder_cls().get_cudagraph_support(None, None)
    assert support is AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE


def test_decode_batches_are_planned_once_and_computed(config, layers, delegated):
    builder = builder_of(config, layers)
    for seed in range(3):
        batch = random_batch(seed, HEADS, PAGE)
        metadata = builder.build(0, common_of(batch))
        cache = cache_of(batch)
        keys, values = (part.double().numpy() for part in pages_of(cache, HEADS.dim, False))
        for layer in layers:
            query, out = run(layer, batch, metadata, len(batch.q), cache)
            close(out.double(), attention(query, keys, values, batch.rows)[0], "bfloat16")
    assert not delegated
    assert not builder.use_cascade_attention()


def test_what_is_captured_serves_padded_batches(config, layers, delegated):
    builder = builder_of(config, layers)
    rows = 12
    capture = builder.build_for_cudagraph_capture(common_of(random_batch(0, HEADS, PAGE), rows=rows))
    (captured,) = capture.tilewright_plans.values()
    for seed in range(3):
        batch = random_batch(seed, HEADS, PAGE, requests=5 + seed)
        metadata = builder.build(0, common_of(batch, rows=rows))
        assert list(metadata.tilewright_plans.values()) == [captured], "the plan that the graph has"
        cache = cache_of(batch)
        keys, values = (part.double().numpy() for part in pages_of(cache, HEADS.dim, False))
        query, out = run(layers[0], batch, metadata, rows, cache)
        close(out[: len(batch.q)].double(), attention(query, keys, values, batch.rows)[0], "bfloat16")
        assert not out[len(batch.q) :].any()
        # Eager steps of other sizes have plans of their own.
        (other,) = builder.build(0, common_of(batch)).tilewright_plans.values()
        assert isinstance(other, Plan)
    # Nor are those of a graph whose lengths lie elsewhere: its kernels read them where they were when it was captured.
    common = common_of(batch, rows=rows)
    (other,) = builder.build(0, common.replace(seq_lens=common.seq_lens.clone())).tilewright_plans.values()
    assert isinstance(other, Plan)
    assert not delegated


def test_every_layer_has_run_with_what_a_graph_captures(config, layers, delegated, monkeypatch):
    batch = random_batch(0, HEADS, PAGE)
    ran = []
    former = TilewrightImpl.run
    monkeypatch.setattr(
        TilewrightImpl, "run", lambda impl, plan, *given: ran.append((impl, plan)) or former(impl, plan, *given)
    )
    for layer in layers:
        layer.kv_cache = cache_of(batch)
    builder = builder_of(config, layers)
    (captured,) = builder.build_for_cudagraph_capture(common_of(batch, rows=12)).tilewright_plans.values()
    assert [plan for _, plan in ran] == [captured] * 2 and [impl for impl, _ in ran] == [layer.impl for layer in layers]
    builder.build_for_cudagraph_capture(common_of(batch, rows=12))
    assert len(ran) == 2, "once a size"


def test_flash_attention_schedules_what_it_computes(config, layers, delegated, monkeypatch):
    asked = []
    former = FlashAttentionMetadataBuilder.build

    def build(self, prefix, common, fast_build=False):
        asked.append(fast_build)
        # Ranges would be copied to a GPU.
        return former(self, prefix, common.replace(mm_req_doc_ranges=None), fast_build)

    monkeypatch.setattr(FlashAttentionMetadataBuilder, "build", build)
    batch = random_batch(1, HEADS, PAGE)
    builder = builder_of(config, layers)
    for _ in range(4):
        builder.build(0, common_of(batch))
    assert asked == [False, True], (
        "its first schedule looks at the layers' windows; what it makes without one is copied"
    )
    builder.build(0, common_of(batch, [1] * 8 + [3]))
    builder.build(0, common_of(batch).replace(mm_req_doc_ranges={0: [(0, 1)]}))
    assert asked[2:] == [False, True], "it computes prompts, and tokens that see what is behind them"
    del asked[:]
    layers[0].impl.kind = None
    builder = builder_of(config, layers)
    for _ in range(3):
        builder.build(0, common_of(batch))
    assert asked == [False] * 3, "it computes a layer of each step"


def test_metadata_of_later_steps_is_what_flash_attention_makes(config, layers, delegated):
    builder, own = builder_of(config, layers), builder_of(config, layers)
    for seed in range(5):
        common = common_of(random_batch(seed, HEADS, PAGE, requests=3 + seed))
        metadata = builder.build(0, common)
        expected = FlashAttentionMetadataBuilder.build(own, 0, common, True)
        assert type(metadata) is type(expected)
        for field in dataclasses.fields(expected):
            assert getattr(metadata, field.name) is getattr(expected, field.name), field.name
        assert metadata.tilewright_plans
    assert builder._like is not None


@pytest.mark.parametrize(
    "added", [{"of_another_version": 0}, {"num_decode_tokens": 7}, {"scheduler_metadata": torch.ones(1)}], ids=str
)
def test_metadata_with_more_to_it_is_made_anew_each_time(config, layers, delegated, monkeypatch, added):
    former = FlashAttentionMetadataBuilder.build
    calls = []

    def build(self, prefix, common, fast_build=False):
        made = former(self, prefix, common, fast_build)
        calls.append(made)
        kept = [(field.name, Any, field) for field in dataclasses.fields(made) if field.name not in added]
        more = [(name, Any, dataclasses.field(default=value)) for name, value in added.items()]
        given = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)} | added
        return dataclasses.make_dataclass("Metadata", [(name, Any) for name, *_ in kept + more])(**given)

    monkeypatch.setattr(FlashAttentionMetadataBuilder, "build", build)
    builder = builder_of(config, layers)
    for _ in range(3):
        builder.build(0, common_of(random_batch(1, HEADS, PAGE)))
    assert len(calls) == 3 and builder._like is None


def test_a_captured_plan_follows_its_batch(config, layers, delegated):
    builder = builder_of(config, layers)
    rows, columns = 12, 40
    random = np.random.default_rng(7)
    builder.build_for_cudagraph_capture(common_of(random_batch(0, HEADS, PAGE), rows=rows))
    pages = [[0, 1, 2, *range(10 + 30 * row, 12 + 30 * row)] for row in range(rows)]
    spare = [list(range(12 + 30 * row, 40 + 30 * row)) for row in range(rows)]
    lens = np.array([5 * PAGE - row for row in range(rows)], np.int32)
    keys, values = random.standard_normal((2, 400, PAGE, HEADS.kv, HEADS.dim))
    wide = SimpleNamespace(keys=keys, cache=lambda layout: (keys, values))
    cache = cache_of(wide)
    keys, values = (part.double().numpy() for part in pages_of(cache, HEADS.dim, False))
    tables = np.full((rows, columns), 399, np.int32)
    for step in range(60):
        tables[:] = 399
        if step in (25, 35, 50):
            # Rows move up, and the first ones are the last.
            up = step // 10
            pages, spare, lens = pages[up:] + pages[:up], spare[up:] + spare[:up], np.roll(lens, -up)
        for row in range(rows):
            if step == 20 and row == 3:
                lens[row] = 0  # it is done
            elif step == 30 and row == 3:
                pages[row], lens[row] = [0, 1, 390, 391], 50  # another one
            elif step == 40 and row in (5, 6):
                pages[row], lens[row] = pages[11 - row], lens[11 - row]
            elif lens[row]:
                lens[row] += 1
                if lens[row] > PAGE * len(pages[row]):
                    pages[row] = [*pages[row], spare[row].pop()]
            used = -(-int(lens[row]) // PAGE)
            tables[row, :used] = pages[row][:used]
        batch = SimpleNamespace(
            block_tables=(tables.copy(), lens.copy()), q=random.standard_normal((rows, HEADS.query, HEADS.dim))
        )
        metadata = builder.build(0, common_of(batch))
        query, out = run(layers[0], batch, metadata, rows, cache)
        of_rows = [(tables[row, : -(-int(lens[row]) // PAGE)].tolist(), int(lens[row])) for row in range(rows)]
        close(out.double(), attention(query, keys, values, of_rows)[0], "bfloat16")
    assert not delegated


def test_prompts_mixed_batches_and_drafts_are_delegated(config, layers, delegated):
    builder = builder_of(config, layers)
    batch = random_batch(1, HEADS, PAGE)
    mixed = [1] * 8 + [3]
    for metadata in (
        builder.build(0, common_of(batch, mixed)),
        builder.build(0, common_of(batch), fast_build=True),
        builder.build(0, common_of(batch).replace(causal=False)),
        builder.build_for_cudagraph_capture(common_of(batch, mixed)),
    ):
        _, out = run(layers[0], batch, metadata, metadata.num_actual_tokens)
        assert (out == 7).all()
    assert len(delegated) == 4
    batch_of_none = layers[0].impl.forward(layers[0], *[torch.zeros(2, 8, 64)] * 3, None, None, torch.ones(2, 8, 64))
    assert (batch_of_none == 7).all(), "profiling runs are delegated"


@pytest.mark.parametrize(
    "options",
    [
        {"alibi_slopes": [0.5] * HEADS.query},
        {"attn_type": "encoder_only"},
    ],
    ids=str,
)
def test_layers_that_are_not_served_are_flash_attentions(config, options):
    given = {"alibi_slopes": None, "sliding_window": None, "kv_cache_dtype": "auto"} | options
    with set_current_vllm_config(config):
        assert TilewrightImpl(HEADS.query, HEADS.dim, 0.125, HEADS.kv, **given).kind is None


def test_heads_that_no_kernel_has_are_left_to_flash_attention(config, layers, delegated, caplog):
    for layer in layers:
        layer.impl.head_size = 72
        layer.impl.kind = layer.impl._kind()
    batch = random_batch(5, HEADS, PAGE)
    with caplog.at_level("WARNING", "tilewright"):
        metadata = builder_of(config, layers).build(0, common_of(batch))
    assert "is left to FlashAttention: `dim` is 72" in caplog.text
    run(layers[0], batch, metadata, len(batch.q))
    assert len(delegated) == 1


@pytest.mark.parametrize("window", [20, 200])
def test_windows_softcaps_and_sinks_reach_the_plan(config, layers, delegated, window):
    sinks = torch.linspace(-2, 2, HEADS.query)
    for layer in layers:
        layer.impl.sliding_window, layer.impl.logits_soft_cap = (window - 1, 0), 2.0
        layer.impl.sinks, layer.impl.kind = sinks.bfloat16(), layer.impl._kind()
    batch = random_batch(5, HEADS, PAGE)
    metadata = builder_of(config, layers).build(0, common_of(batch))
    cache = cache_of(batch)
    keys, values = (part.double().numpy() for part in pages_of(cache, HEADS.dim, False))
    query, out = run(layers[0], batch, metadata, len(batch.q), cache)
    rounded = sinks.bfloat16().double().numpy()
    expected, _ = attention(query, keys, values, batch.rows, window=window, softcap=2.0, sinks=rounded)
    close(out.double(), expected, "bfloat16")


def test_fp8_caches_are_read_with_their_scales(config, layers, delegated, monkeypatch):
    for layer in layers:
        layer.impl.kv_cache_dtype = "fp8"
        layer.impl.kind = layer.impl._kind()
        layer._k_scale, layer._v_scale, layer._q_scale = torch.tensor(0.5), torch.tensor(2.0), torch.tensor(1.5)
    batch = random_batch(6, HEADS, PAGE)
    metadata = builder_of(config, layers).build(0, common_of(batch))
    cache = cache_of(batch, torch.float8_e4m3fn).view(torch.uint8)
    keys, values = (part.float().double().numpy() for part in pages_of(cache, HEADS.dim, True))
    query, out = run(layers[0], batch, metadata, len(batch.q), cache)
    close(out.double(), attention(query, 0.5 * keys, 2 * values, batch.rows)[0], "bfloat16")
    # FlashAttention 3 gets queries in FP8.
    asked = []
    monkeypatch.setattr(
        "vllm._custom_ops.scaled_fp8_quant",
        lambda query, scale: asked.append(scale) or ((query / scale).to(torch.float8_e4m3fn), scale),
    )
    layers[0].impl._flash_quantizes = True
    metadata = builder_of(config, layers).build(0, common_of(batch, [1] * 8 + [2]))
    run(layers[0], batch, metadata, 10, cache)
    ((impl, given, said),) = delegated
    assert given.dtype == torch.float8_e4m3fn and given.shape == (10, *HEADS[::2]) and said
    assert asked == [layers[0]._q_scale] and not impl.supports_quant_query_input


def test_the_hosts_block_tables_are_found():
    from vllm.v1.worker.block_table import BlockTable

    tables = HostTables()
    made = BlockTable(PAGE, 8, 16, 64, False, torch.device("cpu"), PAGE, 1)
    made.add_row([3, 1, 4], 0)
    made.add_row([3, 1, 5, 9], 1)
    batch = random_batch(2, HEADS, PAGE, requests=2)
    common = common_of(batch)
    device = made.get_device_tensor(2)
    assert HostTables._known[device.data_ptr()] is made
    found = tables.of(common.replace(block_table_tensor=device))
    assert found.entries.data_ptr() == made.block_table.cpu.data_ptr(), "nothing is copied"
    assert rows_of(found)[0][:4] == [3, 1, 4, 0] and rows_of(found)[1][:4] == [3, 1, 5, 9]
    assert found.seq_lens.tolist() == batch.block_tables[1].tolist()
    wide = tables.of(common.replace(seq_lens_cpu_upper_bound=torch.tensor([33, 0, 20])[::2]))
    assert wide.seq_lens.dtype == torch.int32 and wide.seq_lens.tolist() == [33, 20] and wide.seq_lens.is_contiguous()
    unknown = torch.arange(6, dtype=torch.int32).view(2, 3)
    found = tables.of(common.replace(block_table_tensor=unknown))
    assert torch.equal(found.entries, unknown), "tables of the device alone are copied"


def test_the_hosts_block_tables_count_their_writes():
    from vllm.v1.worker.block_table import BlockTable

    tables = HostTables()
    made = BlockTable(PAGE, 8, 16, 64, False, torch.device("cpu"), PAGE, 1)
    common = common_of(random_batch(2, HEADS, PAGE, requests=3)).replace(block_table_tensor=made.get_device_tensor(3))
    writes_of = lambda: tables.of(common).source.writes
    made.add_row([3, 1, 4], 0)
    made.add_row([3, 1, 5, 9], 1)
    before = writes_of().tolist()
    assert before[0] and before[1] and before[0] != before[1] and not any(before[2:])
    assert _address(writes_of()) == tables.of(common).source.writes_address
    made.append_row([7], 0)
    assert writes_of()[0] > max(before) and writes_of()[1] == before[1]
    first, second = writes_of()[:2].tolist()
    made.swap_row(0, 1)
    assert writes_of()[:2].tolist() == [second, first], "requests are known by their numbers"
    made.move_row(1, 2)
    assert writes_of()[:3].tolist() == [second, 0, first], "what is left behind may be anything"
    made.clear_row(2)
    assert writes_of()[2] not in (0, first)
    made.clear()
    assert not writes_of().any(), "and what was there may come back"
    made.add_row([2], 1)
    numbers = writes_of()
    made.get_numpy_array()
    assert not numbers.any() and tables.of(common).source.writes_address == 0, "lent memory may be written to"
    made.add_row([2], 1)
    assert writes_of() is None

    class Other(BlockTable):
        def append_row(self, block_ids, row_idx):
            self.block_table.np[row_idx, 0] = 1

    other = Other(PAGE, 8, 16, 64, False, torch.device("cpu"), PAGE, 1)
    other.append_row([3], 0)
    found = tables.of(common.replace(block_table_tensor=other.get_device_tensor(3)))
    assert found.source.writes_address == 0, "who overrides methods may not count"


def test_tables_of_versions_with_unknown_methods_are_read_as_a_whole():
    class Newer:
        append_row = add_row = clear_row = move_row = swap_row = clear = fill_row = lambda *given: None
        get_cpu_tensor = get_numpy_array = lambda self: None

    methods = dict(vars(Newer))
    _count_writes(Newer)
    assert dict(vars(Newer)) == methods
    del Newer.fill_row
    _count_writes(Newer)
    assert Newer.append_row is not methods["append_row"]


def rows_of(found):
    """What the native half reads: the rows of the batch."""
    return found.entries[: len(found.seq_lens)].tolist() if found.order is None else found.entries[found.order].tolist()


def test_block_tables_of_the_second_runner_are_mirrored():
    block_table = pytest.importorskip("vllm.v1.worker.gpu.block_table").BlockTables
    runner = pytest.importorskip("vllm.v1.worker.gpu.model_runner").GPUModelRunner
    found_of = HostTables().of
    # Version 0.24 splits blocks for kernels that want smaller ones.
    factor = 2 if "kernel_block_sizes" in inspect.signature(block_table.__init__).parameters else 1
    blocks = lambda *given: (list(given) if factor == 2 else [2 * block + part for block in given for part in (0, 1)],)
    # What needs a GPU is left out: the tables themselves, and the kernels that gather them.
    tables = object.__new__(block_table)
    tables.num_kv_cache_groups, tables.blocks_per_kv_block, tables._num_dirty_rows = 1, [factor], 0
    if factor == 1:
        del tables.blocks_per_kv_block
    tables.num_blocks = SimpleNamespace(np=np.zeros((1, 8), np.int32))
    tables.input_block_tables = [torch.full((8, 16), -1, dtype=torch.int32)]
    tables.block_tables = [SimpleNamespace(stage_write=lambda *given: None, gpu=tables.input_block_tables[0])]
    tables.gather_block_tables = lambda order, num_reqs_padded, **given: [
        tables.input_block_tables[0][:num_reqs_padded]
    ]
    tables.compute_slot_mappings = lambda *given, **named: None
    tables.append_block_ids(5, blocks(1, 2), True)
    tables.append_block_ids(3, blocks(7), True)
    tables.append_block_ids(5, blocks(4), False)
    batch = SimpleNamespace(idx_mapping=None, idx_mapping_np=np.array([3, 5]), query_start_loc=None, positions=None)
    batch.num_reqs_after_padding, batch.num_tokens_after_padding = 3, 3
    states = SimpleNamespace(num_computed_tokens=SimpleNamespace(gpu=None))
    of_runner = SimpleNamespace(block_tables=tables, pcp_manager=None, req_states=states)
    ((device,), _) = runner.prepare_attn(of_runner, batch)
    (mirror,) = tables._tilewright_mirrors
    before = mirror.writes.tolist()
    assert before[3] and before[5] and before[3] != before[5], "no two writes have the same number"
    tables.append_block_ids(5, ([],), False)
    assert mirror.writes.tolist() == before, "nothing was written"
    common = common_of(random_batch(2, HEADS, PAGE, requests=2), rows=3)
    lens = torch.tensor([20, 70, 0])
    common = common.replace(block_table_tensor=device, seq_lens_cpu_upper_bound=lens)
    found = found_of(common)
    assert [row[:5] for row in rows_of(found)] == [[14, 15, 0, 0, 0], [2, 3, 4, 5, 8]]
    assert found.seq_lens.tolist() == [20, 70], "without padding"
    attention_ = Attention(HEADS, PAGE, dtype="float32")
    plan = attention_.graph_plan(rows=3, pages=99)
    assert plan._update(found.addresses(), 0)
    keys, values = np.random.default_rng(3).standard_normal((2, 20, PAGE, HEADS.kv, HEADS.dim)).astype(np.float32)
    query = np.ones((3, HEADS.query, HEADS.dim), np.float32)
    for planned, count in ((plan, 3), (attention_._plan(found.addresses()), 2)):
        out = planned.run(query[:count], (keys, values))
        expected = attention(query[:2], keys, values, [([14, 15], 20), ([2, 3, 4, 5, 8], 70)])[0]
        close(out[:2], expected)
        assert not out[2:].any()
    tables.append_block_ids(3, blocks(6), True)
    assert rows_of(found_of(common))[0][:2] == [12, 13], "another request has the row"
    of_runner.pcp_manager = SimpleNamespace(prepare_attn=lambda batch: ([device], None))  # 0.24 has none
    runner.prepare_attn(of_runner, batch)
    assert torch.equal(found_of(common).entries, device[:3]), "another batch than the mirror's"
    runner.prepare_attn(SimpleNamespace(block_tables=tables, pcp_manager=None, req_states=states), batch)
    (dummy,) = tables.get_dummy_block_tables(3)
    found = found_of(common.replace(block_table_tensor=dummy))
    assert torch.equal(found.entries, dummy[:3]), "a step without requests has the device's"
