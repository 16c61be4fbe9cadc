"""One engine of vLLM in a process of its own: what the GPU has of it is gone when the process is.

`vllm_engine.py` starts it, and gives it one job as a line of JSON. Results are lines that begin with `@`; everything else is vLLM's log.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import statistics
import sys
import time
import traceback
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent))

from kernels import Profiler, profiled
from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.attention.backends.fa_utils import get_flash_attn_version
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from workloads import Workload, chosen

PR_SET_PDEATHSIG = 1
SETTLE, PROFILED = 8, 4
"""Decode steps of the full batch before those that are timed, and after them under the profiler."""
SPARE = 64
"""Tokens more that a request may have: those that began first decode while others are added."""


def say(kind: str, what) -> None:
    print("@" + json.dumps([kind, what]), flush=True)


class Engine:
    """An engine with one attention backend."""

    def __init__(
        self, job: SimpleNamespace, *, batches: list[int], longest: int, cache_bytes: int, load_format: str
    ) -> None:
        began = time.perf_counter()
        self._llm = LLM(
            job.folder,
            tokenizer=job.folder,
            skip_tokenizer_init=True,
            generation_config="vllm",
            load_format=load_format,
            dtype="bfloat16",
            seed=0,
            max_model_len=longest,
            max_num_seqs=max(batches),
            max_num_batched_tokens=8192,
            block_size=job.block_size,
            enable_prefix_caching=True,
            kv_cache_memory_bytes=cache_bytes,
            gpu_memory_utilization=0.5,
            disable_log_stats=True,
            attention_config={"backend": job.attention},
            # Nothing is compiled, so that it starts within seconds; what is captured has the sizes that come.
            compilation_config={
                "mode": 0,
                "cudagraph_mode": job.graphs,
                "cudagraph_capture_sizes": sorted(set(batches)) if job.graphs != "NONE" else [],
            },
            **job.options,
        )
        # Plug-ins are loaded by now.
        self.build_us: list[float] = []
        self._time_metadata(job.attention)
        self._engine = self._llm.llm_engine
        self._ids = 0
        config = self._engine.vllm_config
        self.about = {
            "start_s": time.perf_counter() - began,
            "runner": 2 if config.use_v2_model_runner else 1,
            "async_scheduling": bool(config.scheduler_config.async_scheduling),
            "flash_attention": get_flash_attn_version(),
            "block_size": config.cache_config.block_size,
        }

    def _time_metadata(self, attention: str) -> None:
        """Notes what each step's metadata costs on the host: vLLM plans there what a backend plans."""
        builder = AttentionBackendEnum[attention].get_class().get_builder_cls()
        former = builder.build

        def build(*args, **kwargs):
            before = time.perf_counter()
            metadata = former(*args, **kwargs)
            self.build_us.append(1e6 * (time.perf_counter() - before))
            return metadata

        builder.build = build

    def _add(self, prompt: list[int], tokens: int) -> None:
        params = SamplingParams(
            temperature=0.0,
            max_tokens=tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._ids += 1
        self._engine.add_request(str(self._ids), {"type": "token", "prompt_token_ids": prompt}, params)

    def tokens(self, prompts: list[list[int]], count: int) -> list[list[int]]:
        """So many tokens of each, all decoded together."""
        first = self._ids + 1
        for prompt in prompts:
            self._add(prompt, count)
        answers: list[list[int]] = [[] for _ in prompts]
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                answers[int(output.request_id) - first] += output.outputs[0].token_ids
        return answers

    def forget(self) -> None:
        """Empties the prefix cache."""
        self._engine.reset_prefix_cache()

    def decode(self, prompts: list[list[int]], timed: int) -> dict:
        """Decode steps of all requests together: seconds of a step, host's part of it, and what the GPU does."""
        steps = SETTLE + timed + PROFILED
        for prompt in prompts:
            self._add(prompt, steps + SPARE)
        seen, times, profiler, built, kernels = 0, [], Profiler(), 0, []
        while seen <= steps and self._engine.has_unfinished_requests():
            if len(self._engine.step()) < len(prompts):
                continue
            if SETTLE <= seen <= SETTLE + timed:
                times.append(time.perf_counter())
            if seen == SETTLE:
                built = len(self.build_us)
            if seen == SETTLE + timed:
                builds = self.build_us[built:]
                self._guarded(profiler.start)
            if seen == steps:
                self._guarded(lambda: kernels.extend(profiler.stop()))
            seen += 1
        self._finish()
        if seen <= steps:
            raise RuntimeError(f"all {len(prompts)} requests decoded together in {seen} of {steps + 1} steps")
        gaps = [b - a for a, b in pairwise(times)]
        return {
            "steps": timed,
            "step_ms": 1e3 * (times[-1] - times[0]) / timed,
            "median_step_ms": 1e3 * statistics.median(gaps),
            "metadata_us": statistics.median(builds) if builds else None,
            **(profiled(kernels, PROFILED) if kernels else {}),
        }

    def _guarded(self, do) -> None:
        """What was timed is worth something without a profile."""
        try:
            do()
        except Exception as error:
            print(f"no profile: {type(error).__name__}: {error}", flush=True)

    def _finish(self) -> None:
        self._engine.abort_request([str(number) for number in range(self._ids + 1)])
        while self._engine.has_unfinished_requests():
            self._engine.step()


def serve(job: SimpleNamespace) -> None:
    """All workloads, one after the other."""
    args = SimpleNamespace(**job.args | {"trace": Path(job.args["trace"]) if job.args["trace"] else None})
    workloads = list(chosen(args, job.vocabulary, job.most_tokens))
    steps = SETTLE + job.steps + PROFILED + SPARE
    # Pages of all prompts, those that requests grow into, and one that they begin with.
    tokens = [w.unique_pages * w.page_size + len(w.prompts) * (steps + 2 * job.block_size) for w in workloads]
    engine = Engine(
        job,
        batches=[len(workload.prompts) for workload in workloads],
        longest=max(workload.longest for workload in workloads) + steps,
        cache_bytes=max(tokens) * job.token_bytes + 2**28,
        load_format="dummy",
    )
    say("started", engine.about)
    for workload in workloads:
        try:
            say("serve", one(engine, workload, job.steps) | engine.about)
        except Exception as error:
            traceback.print_exc()
            say("left_out", [workload.name, f"{type(error).__name__}: {error}"])


def one(engine: Engine, workload: Workload, steps: int) -> dict:
    began = time.perf_counter()
    engine.forget()
    for level in workload.levels:
        engine.tokens(level, 1)
    primed = time.perf_counter() - began
    found = engine.decode(workload.prompts, steps)
    batch = len(workload.prompts)
    return {
        "workload": workload.name,
        "requests": batch,
        "prompt_tokens": workload.tokens,
        "unique_tokens": workload.unique_pages * workload.page_size,
        **found,
        "tokens_per_s": 1e3 * batch / found["step_ms"],
        "prefill_s": primed,
        "wall_s": time.perf_counter() - began,
    }


def greedy(job: SimpleNamespace) -> None:
    """Tokens of a small model, whose weights were saved."""
    longest = max(map(len, job.prompts)) + job.tokens + 1
    cache = sum(len(prompt) + job.tokens + 2 * job.block_size for prompt in job.prompts) * job.token_bytes + 2**28
    engine = Engine(job, batches=[len(job.prompts)], longest=longest, cache_bytes=cache, load_format="auto")
    say("started", engine.about)
    say("answers", engine.tokens(job.prompts, job.tokens))


def main() -> None:
    # Nobody waits for what it has to say once its parent is gone, and others want the GPU.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Imports take longest, and are done while the process before has the GPU.
    job = SimpleNamespace(**json.loads(sys.stdin.readline()))
    {"serve": serve, "greedy": greedy}[job.kind](job)
    say("done", None)
    os._exit(0)  # the driver takes the engine apart sooner than Python does


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        traceback.print_exc()
        say("failed", f"{type(error).__name__}: {error}")
        raise SystemExit(1) from error
