"""The classes of vLLM's attention backend: FlashAttention's, with decode batches computed by Tilewright."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention as AttentionLayer
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType
from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadata,
    FlashAttentionMetadataBuilder,
)

from ._attention import Attention, Heads
from ._graph_plan import GraphPlan
from ._native import CudaError
from ._plan import Plan
from ._vllm_tables import HostTables

_LOGGER = logging.getLogger("tilewright")
_FP8 = ("fp8", "fp8_e4m3")
_PLANS = "tilewright_plans"


class Kind(NamedTuple):
    """What layers have in common that one plan serves."""

    heads: Heads
    scale: float
    window: int | None
    softcap: float | None
    fp8: bool


class TilewrightBackend(FlashAttentionBackend):
    """FlashAttention's backend with another implementation of layers, and another builder of metadata."""

    @staticmethod
    def get_name() -> str:
        """The name that it is registered by."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[TilewrightImpl]:
        """Of layers."""
        return TilewrightImpl

    @staticmethod
    def get_builder_cls() -> type[TilewrightMetadataBuilder]:
        """Of a step's metadata."""
        return TilewrightMetadataBuilder

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        """A batch decides what is computed together."""
        return False


class TilewrightMetadataBuilder(FlashAttentionMetadataBuilder):
    """Plans decode batches."""

    # A captured decode step serves all batches of its size; mixed batches are captured piecewise, around attention.
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    # Another group's block tables need another plan.
    supports_update_block_table: bool = False

    @classmethod
    def get_cudagraph_support(cls, *args: Any, **kwargs: Any) -> AttentionCGSupport:
        """Graphs of steps that only decode, a token of each request."""
        del args, kwargs
        return cls._cudagraph_support

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._names = layer_names
        self._tables = HostTables()
        self._dtype = vllm_config.model_config.dtype
        self._most_pages = -(-vllm_config.model_config.max_model_len // kv_cache_spec.block_size)
        self._attentions: dict[Kind, Attention] | None = None
        self._all_served = False
        self._captured: dict[tuple[int, int], dict[Kind, GraphPlan]] = {}
        """Plans that graphs have captured, by requests and the address of their lengths."""
        self._serves: bool | None = None
        self._stream = _current_stream(device)
        self._metadata: type[FlashAttentionMetadata] = FlashAttentionMetadata
        self._like: dict[str, Any] | None = None
        """What all steps have, and the class that has it."""

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> FlashAttentionMetadata:
        """FlashAttention's metadata, with a plan for each kind of layer if the batch only decodes."""
        common = common_attn_metadata
        if fast_build or not self._decodes(common):
            return super().build(0, common, fast_build)
        like = self._like
        if like is None or getattr(common, "mm_req_doc_ranges", None) is not None:
            first = self._first_metadata(common)
            setattr(first, _PLANS, self._plans(common))
            return first
        # Written out, and without the class's `__init__`: this is done in every step, between two of the GPU's. `_OF_STEP` says the same.
        metadata = object.__new__(self._metadata)
        metadata.__dict__ = {
            **like,
            "num_actual_tokens": common.num_actual_tokens,
            "max_query_len": 1,
            "query_start_loc": common.query_start_loc,
            "max_seq_len": common.max_seq_len,
            "seq_lens": common.seq_lens,
            "block_table": common.block_table_tensor,
            "slot_mapping": common.slot_mapping,
            _PLANS: self._plans(common),
        }
        return metadata

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> FlashAttentionMetadata:
        """Metadata with plans that a graph captures, for batches of as many requests. Their requests have no tokens yet."""
        metadata = super().build(0, common_attn_metadata)
        if self._decodes(common_attn_metadata):
            rows = common_attn_metadata.num_reqs
            plans = self._captured.setdefault(_captured_by(common_attn_metadata), {})
            lens = self._device_lens(common_attn_metadata)
            for kind, attention in self._kinds().items():
                # No batch has more entries: requests of the greatest length that share nothing.
                if kind not in plans:
                    made = attention.graph_plan(rows=rows, pages=rows * self._most_pages, device_lens=lens)
                    self._run_once(made, kind)
                    plans[kind] = made
            setattr(metadata, _PLANS, plans)
        return metadata

    def _device_lens(self, common: Any) -> torch.Tensor | None:
        """The batch's lengths on the device, where each step has them: what FlashAttention's kernels read in graphs."""
        lens: torch.Tensor = common.seq_lens
        fits = lens.dtype is torch.int32 and lens.is_contiguous() and lens.device.type == self.device.type
        return lens[: common.num_reqs] if fits and len(lens) >= common.num_reqs else None

    def use_cascade_attention(self, *args: Any, **kwargs: Any) -> bool:
        """Plans have all shared prefixes, not only one of all requests."""
        del args, kwargs
        return False

    def _first_metadata(self, common: Any) -> FlashAttentionMetadata:
        """FlashAttention's metadata of a batch that only decodes.

        Its schedule of its own kernels is a launch and a copy that nothing reads where every layer has a plan; what else it makes is the same
        in each step. It is made once, then copied with what a step has. Versions with other fields make it anew.
        """
        # Its first one looks at layers.
        unread = self._all_served and getattr(self, "aot_sliding_window", None) is not None
        metadata = super().build(0, common, unread)
        if unread and _is_known(metadata):
            self._metadata = type(metadata)
            self._like = {name: value for name, value in vars(metadata).items() if name not in _OF_STEP}
        return metadata

    def _decodes(self, common: Any) -> bool:
        return (
            common.max_query_len == 1
            and common.num_actual_tokens == common.num_reqs
            and common.causal is True
            and getattr(common, "rswa_prefix_lens", None) is None
            and (self._serves or (self._serves is None and self._find_layers()))
        )

    def _find_layers(self) -> bool:
        """Whether some layer is served, once layers are made."""
        # With drafts, lengths on the host are bounds.
        self._serves = self.vllm_config.speculative_config is None and bool(self._kinds())
        return self._serves

    def _run_once(self, plan: GraphPlan, kind: Kind) -> None:
        """Runs the plan, whose requests have no tokens, with every layer that a graph captures it with.

        The first model runner warms up with a plan of another sort. What a first run does (kernels for the cache's strides and for sinks are
        compiled, functions loaded, tensor maps encoded) cannot be captured.
        """
        shape = (plan.batch, kind.heads.query, kind.heads.dim)
        query = torch.zeros(shape, dtype=self._dtype, device=self.device)
        output = torch.empty_like(query)
        for layer in self._layers():
            if layer.impl.kind == kind and layer.kv_cache.numel() > 0:
                layer.impl.run(plan, layer, query, layer.kv_cache, output)

    def _layers(self) -> list[Any]:
        """Layers with our implementation."""
        layers = get_layers_from_vllm_config(self.vllm_config, AttentionLayer, self._names)
        return [layer for layer in layers.values() if isinstance(layer.impl, TilewrightImpl)]

    def _kinds(self) -> dict[Kind, Attention]:
        """The kinds of layers that are served, once layers are made."""
        if self._attentions is None:
            found = [layer.impl.kind for layer in self._layers()]
            self._attentions = {}
            for kind in set(found) - {None}:
                try:
                    self._attentions[kind] = self._attention(kind)
                except (ValueError, CudaError) as error:
                    _LOGGER.warning("%s is left to FlashAttention: %s", kind.heads, error)
            self._all_served = len(found) == len(self._names) and all(kind in self._attentions for kind in found)
        return self._attentions

    def _attention(self, kind: Kind) -> Attention:
        attention = Attention(
            kind.heads,
            self.kv_cache_spec.block_size,
            dtype=self._dtype,
            kv_dtype="float8_e4m3fn" if kind.fp8 else None,
            device=self.device,
            scale=kind.scale,
            window=kind.window,
            softcap=kind.softcap,
        )
        attention.prepare()
        return attention

    def _plans(self, common: Any) -> Mapping[Kind, Plan | GraphPlan]:
        host = self._tables.of(common)
        # A batch whose lengths lie elsewhere is no graph's.
        captured = self._captured.get(_captured_by(common))
        if captured is None:
            table = host.addresses()
            return {kind: attention._plan(table) for kind, attention in self._kinds().items()}
        source, lens, requests = host
        for plan in captured.values():
            if not plan._update_rows(
                source.place, lens.data_ptr(), requests, source.order_address, source.writes_address, self._stream()
            ):
                raise RuntimeError(
                    f"a batch of {requests} requests has no room in the plan that was captured for {common.num_reqs}: its pages lie "
                    "beyond those that the captured kernels count to; start vLLM with fewer blocks (`--num-gpu-blocks-override`)"
                )
        return captured


def _captured_by(common: Any) -> tuple[int, int]:
    """What a graph that serves a batch was captured with."""
    return common.num_reqs, common.seq_lens.data_ptr()


def _current_stream(device: torch.device) -> Callable[[], int]:
    """Tells the address of torch's current stream."""
    if device.type == "cpu":
        return lambda: 0
    # What torch's own compiled code asks, without an object for each answer.
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is None or device.index is None:
        return lambda: torch.cuda.current_stream(device).cuda_stream
    return partial(raw, device.index)


# Fields of FlashAttention's metadata that a step has, and where they come from.
_OF_STEP = {
    "num_actual_tokens": "num_actual_tokens",
    "max_query_len": "max_query_len",
    "query_start_loc": "query_start_loc",
    "max_seq_len": "max_seq_len",
    "seq_lens": "seq_lens",
    "block_table": "block_table_tensor",
    "slot_mapping": "slot_mapping",
}
# Others that versions have had. In steps that only decode, without context parallelism or a schedule, they are empty.
_OF_OTHER_STEPS = {
    "use_cascade",
    "common_prefix_len",
    "cu_prefix_query_lens",
    "prefix_kv_lens",
    "suffix_kv_lens",
    "max_dcp_context_kv_len",
    "dcp_context_kv_lens",
    "num_decode_reqs",
    "num_prefill_reqs",
    "num_decode_tokens",
    "num_prefill_tokens",
    "scheduler_metadata",
    "prefix_scheduler_metadata",
    "mm_prefix_range_tensor",
    "mm_prefix_query_range_tensor",
    "rswa_prefix_lens",
    "rswa_window",
    "rswa_window_tensor",
}
# What is always the same, or read by FlashAttention's kernels alone.
_OF_ALL_STEPS = {"causal", "max_num_splits"}


def _is_known(metadata: Any) -> bool:
    """Whether all that this version's metadata has is known, and what other steps have is empty."""
    names = {field.name for field in fields(metadata)}
    others = names - _OF_STEP.keys() - _OF_ALL_STEPS
    return (
        vars(metadata).keys() == names >= _OF_STEP.keys()
        and others <= _OF_OTHER_STEPS
        and all(isinstance(value := getattr(metadata, name), int | None) and not value for name in others)
    )


class TilewrightImpl(FlashAttentionImpl):
    """A layer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Ours takes queries as they are. FlashAttention wants those for FP8 caches in FP8, and gets them where it is asked.
        self._flash_quantizes = bool(self.supports_quant_query_input)
        self.supports_quant_query_input: bool = False
        self.kind = self._kind()
        self._sinks: torch.Tensor | None = None

    def _kind(self) -> Kind | None:
        """None where FlashAttention is to compute everything."""
        left, right = self.sliding_window
        if (
            self.attn_type != AttentionType.DECODER
            or self.alibi_slopes is not None
            or self.dcp_world_size > 1
            or getattr(self, "batch_invariant_enabled", False)
            or (left >= 0 and right != 0)
            or not (self.kv_cache_dtype in ("auto", "float16", "bfloat16") or self.kv_cache_dtype in _FP8)
        ):
            return None
        return Kind(
            Heads(self.num_heads, self.num_kv_heads, self.head_size),
            self.scale,
            left + 1 if left >= 0 else None,
            float(self.logits_soft_cap) or None,
            self.kv_cache_dtype in _FP8,
        )

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: FlashAttentionMetadata,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Query and output ``[tokens, heads, dim]``, K and V of which the cache has by now."""
        plans = getattr(attn_metadata, _PLANS, None)
        plan = None if plans is None or output_scale is not None else plans.get(self.kind)
        if plan is None:
            with self._flash(layer, query) as asked:
                computed: torch.Tensor = super().forward(
                    layer, asked, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale
                )
                return computed
        self.run(plan, layer, query, kv_cache, output)
        return output

    def run(
        self, plan: Plan | GraphPlan, layer: Any, query: torch.Tensor, kv_cache: torch.Tensor, output: torch.Tensor
    ) -> None:
        """The plan's rows; those behind them are padding."""
        rows = plan.batch
        fp8 = self.kind is not None and self.kind.fp8
        plan.run(
            query[:rows].view(rows, self.num_heads, self.head_size),
            pages_of(kv_cache, self.head_size, fp8),
            output[:rows].view(rows, self.num_heads, self.head_size),
            sinks=self._sinks_of_f32(),
            **({"k_scale": layer._k_scale, "v_scale": layer._v_scale} if fp8 else {}),
        )

    def _sinks_of_f32(self) -> torch.Tensor | None:
        if self.sinks is not None and self._sinks is None:
            self._sinks = self.sinks.float().contiguous()
        return self._sinks

    @contextmanager
    def _flash(self, layer: Any, query: torch.Tensor) -> Iterator[torch.Tensor]:
        """Queries as FlashAttention wants them."""
        if not (self.kv_cache_dtype in _FP8 and self._flash_quantizes) or query.dtype.itemsize == 1:
            yield query
            return
        from vllm import _custom_ops as ops

        narrow, _ = ops.scaled_fp8_quant(query.reshape(len(query), -1), layer._q_scale)
        self.supports_quant_query_input = True
        try:
            yield narrow.view(query.shape)
        finally:
            self.supports_quant_query_input = False


def pages_of(kv_cache: torch.Tensor, head_size: int, fp8: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V ``[blocks, block_size, KV heads, dim]`` of a layer's cache.

    vLLM 0.24 has ``[blocks, 2, block_size, KV heads, dim]``, later ones ``[blocks, KV heads, block_size, 2 dim]``.
    """
    if kv_cache.dim() == 5:
        keys, values = kv_cache.unbind(1)
    elif kv_cache.dim() == 4 and kv_cache.shape[-1] == 2 * head_size:
        tokens_first = kv_cache.transpose(1, 2)
        keys, values = tokens_first[..., :head_size], tokens_first[..., head_size:]
    else:
        raise ValueError(f"the cache has the shape {list(kv_cache.shape)}, which no known version of vLLM has")
    if fp8:
        keys, values = keys.view(torch.float8_e4m3fn), values.view(torch.float8_e4m3fn)
    return keys, values
