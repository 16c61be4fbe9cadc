"""What a decode step's metadata costs on the host through vLLM's plug-in, without a GPU: vLLM's own builder and block tables, and plans of the CPU.

    python3 scripts/end_to_end/metadata_cost.py

Requests share a prefix of 8192 tokens, with some 600 each behind it, in pages of 16. Times are medians of steps, in us. Copies to a device are not in them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from tilewright import _vllm_tables
from tilewright._vllm_backend import TilewrightBackend, TilewrightMetadataBuilder
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.worker.block_table import BlockTable

PAGE, PREFIX, OWN, LONGEST = 16, 8192, 600, 131072
HEADS, KV_HEADS, DIM = 32, 8, 128


class Engine:
    """A batch as vLLM's first or second model runner has it."""

    def __init__(self, requests: int, runner: int, folder: Path) -> None:
        self.requests, self.fresh, self.steps = requests, itertools.count(PREFIX // PAGE), itertools.count()
        self.lens = np.array([PREFIX + OWN + i % PAGE for i in range(requests)], np.int32)
        self.rows = [list(range(PREFIX // PAGE)) for _ in range(requests)]
        self.columns = LONGEST // PAGE
        # In one place, as model runners have them.
        self.device_lens = torch.zeros(requests, dtype=torch.int32)
        # In vLLM, too, builders are there before any request.
        _vllm_tables.HostTables()
        self.mirrored = self._mirrored() if runner == 2 else None
        self.table = BlockTable(PAGE, requests, self.columns, requests, False, torch.device("cpu"), PAGE, 1)
        for row in range(requests):
            self.fill(row)
        # On the CPU both halves are one: what is on the device is told apart by its address alone.
        self.device = self.table.get_device_tensor(requests) if runner == 1 else self.mirrored.device
        self.builder = self._builder(folder)
        self.builder.build_for_cudagraph_capture(self.common(np.zeros(requests, np.int32)))

    def _mirrored(self) -> SimpleNamespace:
        device = torch.zeros(self.requests, self.columns, dtype=torch.int32)
        tables = SimpleNamespace(input_block_tables=[device])
        (mirror,) = _vllm_tables._mirrors_of(tables)
        order = np.arange(self.requests, dtype=np.int32)[::-1].copy()
        mirror.note(order, self.requests)
        return SimpleNamespace(tables=tables, device=device, mirror=mirror, order=order)

    def _builder(self, folder: Path) -> TilewrightMetadataBuilder:
        model = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": HEADS * DIM,
            "intermediate_size": 512,
            "num_hidden_layers": 32,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": DIM,
            "vocab_size": 512,
            "max_position_embeddings": LONGEST,
            "torch_dtype": "bfloat16",
        }
        (folder / "config.json").write_text(json.dumps(model))
        options = {"tokenizer": str(folder), "skip_tokenizer_init": True, "dtype": "bfloat16", "max_model_len": LONGEST}
        self.config = VllmConfig(
            model_config=ModelConfig(model=str(folder), **options),
            cache_config=CacheConfig(block_size=PAGE),
            device_config=DeviceConfig(device="cpu"),
            scheduler_config=SchedulerConfig(
                max_num_seqs=self.requests,
                max_num_batched_tokens=LONGEST,
                max_model_len=LONGEST,
                is_encoder_decoder=False,
            ),
        )
        with set_current_vllm_config(self.config):
            self.layers = [
                Attention(
                    HEADS,
                    DIM,
                    DIM**-0.5,
                    KV_HEADS,
                    cache_config=self.config.cache_config,
                    prefix=f"model.layers.{number}.attn",
                    attn_backend=TilewrightBackend,
                )
                for number in range(32)
            ]
            spec = FullAttentionSpec(block_size=PAGE, num_kv_heads=KV_HEADS, head_size=DIM, dtype=torch.bfloat16)
            names = [layer.layer_name for layer in self.layers]
            return TilewrightMetadataBuilder(spec, names, self.config, torch.device("cpu"))

    def fill(self, row: int) -> None:
        """Gives a row the pages that its tokens need."""
        needed = -(-int(self.lens[row]) // PAGE)
        new = [next(self.fresh) for _ in range(needed - len(self.rows[row]))]
        begins = len(self.rows[row]) == PREFIX // PAGE
        self.rows[row] += new
        if self.mirrored is not None:
            # The first rows of the batch are the mirror's last.
            self.mirrored.mirror.append(int(self.mirrored.order[row]), self.rows[row] if begins else new, begins)
        elif begins:
            self.table.add_row(self.rows[row], row)
        elif new:
            self.table.append_row(new, row)

    def replace(self, row: int) -> None:
        """Another request comes to a row."""
        self.rows[row] = self.rows[row][: PREFIX // PAGE]
        self.lens[row] = PREFIX + OWN
        self.fill(row)

    def leave(self, row: int) -> None:
        """A request is gone, those behind it move up, and another one comes to the last row."""
        self.rows.append(self.rows.pop(row))
        for array in (self.lens, self.mirrored.order):
            array[row:] = np.roll(array[row:], -1)
        self.mirrored.mirror.note(self.mirrored.order, self.requests)
        self.replace(self.requests - 1)

    def common(self, lens: np.ndarray) -> CommonAttentionMetadata:
        starts = torch.arange(self.requests + 1, dtype=torch.int32)
        self.device_lens.copy_(torch.from_numpy(lens))
        return CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=self.device_lens,
            num_reqs=self.requests,
            num_actual_tokens=self.requests,
            max_query_len=1,
            max_seq_len=int(lens.max()),
            block_table_tensor=self.device,
            slot_mapping=torch.zeros(self.requests, dtype=torch.int64),
            seq_lens_cpu_upper_bound=torch.from_numpy(lens.copy()),
        )

    def some(self, count: int) -> list[int]:
        """Some rows, the last one first."""
        chosen = np.random.default_rng(next(self.steps)).choice(self.requests, count, replace=False)
        return sorted(map(int, chosen), reverse=True)

    def step(self) -> float:
        """The time of a step's metadata, in us."""
        common = self.common(self.lens)
        began = time.perf_counter()
        self.builder.build(0, common)
        return 1e6 * (time.perf_counter() - began)

    def lengths(self) -> float:
        """Steps in which requests grow inside their pages: all but those that are full."""
        self.lens += (self.lens % PAGE != 0).astype(np.int32)
        return self.step()

    def pages(self) -> float:
        """A step like most of this batch: all grow, and one in 16 gains a page."""
        self.lens += 1
        for row in range(self.requests):
            self.fill(row)
        return self.step()

    def replaced(self) -> float:
        """Without growth, 16 requests are replaced by others in their rows."""
        for row in self.some(16):
            self.replace(row)
        return self.step()

    def moved(self) -> float:
        """16 requests are gone, and 16 come: in vLLM's second model runner all rows behind the first of them have other requests."""
        for row in self.some(16):
            self.leave(row)
        return self.step()


def main() -> None:
    parser = argparse.ArgumentParser("metadata_cost", description=__doc__)
    parser.add_argument("--requests", default="64,256,512", help="(default: %(default)s)")
    parser.add_argument("--runners", default="1,2", help="vLLM's model runners (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="of each kind (default: %(default)s)")
    args = parser.parse_args()
    for runner, requests in itertools.product(map(int, args.runners.split(",")), map(int, args.requests.split(","))):
        with tempfile.TemporaryDirectory() as folder:
            engine = Engine(requests, runner, Path(folder))
        record = {"runner": runner, "requests": requests}
        for kind in (engine.pages, engine.lengths, engine.replaced, *([engine.moved] if runner == 2 else [])):
            [kind() for _ in range(10)]
            record[f"{kind.__name__}_us"] = round(sorted(kind() for _ in range(args.steps))[args.steps // 2], 1)
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
