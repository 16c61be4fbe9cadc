"""Transformers' continuous batching, with one attention or another."""

from __future__ import annotations

import gc
import threading
import time
from dataclasses import dataclass, field

import torch
from kernels import Profiler
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching import model_runner


@dataclass
class Backend:
    """An attention, and how the engine is configured for it."""

    name: str
    implementation: str
    options: dict = field(default_factory=dict)
    slow: bool = False
    """A step may take a second."""


def backends(names: list[str], device: torch.device, no_flash: str, results) -> list[Backend]:
    """Those of the names that there are here; `no_flash` says why FlashAttention is not."""
    import tilewright.transformers

    on_gpu = device.type == "cuda"
    # Both with CUDA graphs for steps that only decode, and steps prepared while the GPU is at the one before.
    graphs = {"use_cuda_graph": (False, on_gpu), "use_async_batching": on_gpu}
    eager = {"use_cuda_graph": (False, False), "use_async_batching": on_gpu}
    sync = {"use_cuda_graph": (False, False), "use_async_batching": False}
    known = {
        "sdpa": lambda: Backend("sdpa", "paged|sdpa", sync, slow=True),
        "flash_attention_3": lambda: Backend("flash_attention_3", "paged|flash_attention_3", graphs),
        "flash_attention_3-eager": lambda: Backend("flash_attention_3-eager", "paged|flash_attention_3", eager),
        "tilewright": lambda: Backend("tilewright", tilewright.transformers.register(), graphs),
        "tilewright-eager": lambda: Backend("tilewright-eager", tilewright.transformers.register(), eager),
    }
    found = []
    for name in names:
        if name not in known:
            raise SystemExit(f"error: there is no backend {name}: {', '.join(known)}")
        if name.startswith("flash") and not (on_gpu and _has_flash_attention_3()):
            results.left_out(name, no_flash or "it needs a GPU")
            continue
        found.append(known[name]())
    return found


def _has_flash_attention_3() -> bool:
    from transformers.utils import is_flash_attn_3_available

    return is_flash_attn_3_available()


@dataclass
class Steps:
    """What is done at which decode steps of a full batch."""

    settle: int
    """Steps before anything is timed: graphs are captured."""
    timed: int
    profiled: int

    def all(self) -> int:
        # Requests decode already, uncomputed, while the last ones are added.
        return self.settle + self.timed + self.profiled + 64


class Session:
    """A manager of the engine for one workload, which times decode steps of a full batch. No other step is computed: K and V of prompts are random."""

    def __init__(
        self, model, backend: Backend, *, block_size: int, num_blocks: int, batch: int, longest: int, steps: Steps
    ):
        self._model, self._backend, self._batch, self._steps = model, backend, batch, steps
        model.set_attn_implementation(backend.implementation)
        generation = GenerationConfig(do_sample=False, max_new_tokens=2, eos_token_id=-1, pad_token_id=0)
        blocks = -(-longest // block_size) + 1
        config = ContinuousBatchingConfig(
            block_size=block_size,
            num_blocks=num_blocks,
            max_batch_tokens=max(batch, 1024 if backend.slow else 8192),
            max_requests_per_batch=batch,
            max_blocks_per_request=0 if backend.slow else blocks + blocks % 2,
            safety_margin=0.0,
            **backend.options,
        )
        self._filled = self._decoding = False
        self._seen = 0
        self._times: list[float] = []
        self._profiler = Profiler()
        self.profile: list[tuple[str, float]] = []
        """Kernels of the profiled steps, and microseconds."""
        self.error: str | None = None
        self._done = threading.Event()
        self._former = model_runner.ModelRunner.compute_batch
        session, former = self, self._former
        model_runner.ModelRunner.compute_batch = lambda runner, *given: session._compute(former, runner, *given)
        self._manager = model.init_continuous_batching(generation, config)
        self._manager.start()

    def _compute(self, former, runner, model, batch_data) -> None:
        ios = runner.inputs_and_outputs
        io = ios.io_pairs[ios.current_pair].host_io if hasattr(ios, "io_pairs") else ios
        if not self._filled:
            for cache in (*runner.cache.key_cache, *runner.cache.value_cache):
                cache.normal_()
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # steps are on another stream
            self._filled = True
        requests = io.requests_in_batch
        if not self._decoding or len(requests) != self._batch or any(request.query_length > 1 for request in requests):
            return
        try:
            if not self._done.is_set():
                self._step()
            former(runner, model, batch_data)
        except BaseException as error:
            self.error = f"{type(error).__name__}: {error}"
            self._done.set()
            raise

    def _step(self) -> None:
        """Before a decode step of the full batch."""
        steps, seen = self._steps, self._seen
        self._seen += 1
        if steps.settle <= seen <= steps.settle + steps.timed:
            self._times.append(time.perf_counter())
        profiled = seen - steps.settle - steps.timed
        if profiled == 0 and torch.cuda.is_available():
            self._guarded(self._profiler.start)
        if profiled == steps.profiled:
            self._guarded(lambda: self.profile.extend(self._profiler.stop()))
            self._done.set()

    def _guarded(self, do) -> None:
        """What was timed is worth something without a profile."""
        try:
            do()
        except Exception as error:
            self.profile, self._profiler = [], Profiler()
            print(f"no profile: {type(error).__name__}: {error}", flush=True)

    def prime(self, prompts: list[list[int]], timeout: float) -> None:
        """Puts prompts into the cache, one level of a tree after the other."""
        # Of requests that end with their prompt, the engine keeps nothing.
        waited = {self._manager.add_request(prompt, max_new_tokens=2) for prompt in prompts}
        until = time.perf_counter() + timeout
        while waited:
            result = self._manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                waited.discard(result.request_id)
            elif self.error or not self._manager.is_running() or time.perf_counter() > until:
                raise RuntimeError(self.error or "the engine stopped, or took too long for prompts")

    def decode(self, prompts: list[list[int]], timeout: float) -> dict:
        """Decodes all prompts together; seconds of a step, and what the GPU did."""
        self._decoding = True
        for prompt in prompts:
            self._manager.add_request(prompt, max_new_tokens=self._steps.all())
        until = time.perf_counter() + timeout
        while not self._done.wait(0.5):
            if not self._manager.is_running():
                raise RuntimeError(self.error or "the engine stopped: its log says why")
            if time.perf_counter() > until:
                raise TimeoutError(f"{self._seen} steps of all {self._batch} requests in {timeout:.0f} s")
        if self.error or len(self._times) < 2:
            raise RuntimeError(self.error or "the requests never decoded together")
        gaps = sorted(b - a for a, b in zip(self._times, self._times[1:]))
        return {
            "steps": len(gaps),
            "step_ms": 1e3 * (self._times[-1] - self._times[0]) / len(gaps),
            "median_step_ms": 1e3 * gaps[len(gaps) // 2],
        }

    def close(self) -> None:
        try:
            self._manager.stop(block=True, timeout=20, hard_stop=True)
            self._manager.destroy()
        finally:
            model_runner.ModelRunner.compute_batch = self._former
            self._manager = None
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
