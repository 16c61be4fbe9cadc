"""One engine of vLLM in a process of its own: what the GPU has of it is gone when the process is.

`vllm_engine.py` starts it, and gives it one job as a line of JSON. An engine that serves then does what each further line says, until there are none. Answers are lines that begin
with `@`; everything else is vLLM's log.
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
HOST = {
    # The backend's builder alone, which the goal is about.
    "build_us": (),
    # All that vLLM does for a step's metadata, in its first or second model runner, the builder included.
    "metadata_us": (
        ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner", "_build_attention_metadata"),
        ("vllm.v1.worker.gpu.model_states.default", "DefaultModelState", "prepare_attn"),
    ),
    # Of our builder, what the native half takes: it compares, plans, and queues the copy.
    "native_us": (("tilewright._graph_plan", "GraphPlan", "_update_rows"),),
}
"""What is timed on the host: modules, classes and methods."""


def say(kind: str, what) -> None:
    print("@" + json.dumps([kind, what]), flush=True)


class Engine:
    """An engine with one attention backend."""

    def __init__(self, job: SimpleNamespace, *, batches: list[int], longest: int, load_format: str) -> None:
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
            kv_cache_dtype=job.kv_cache_dtype,
            enable_prefix_caching=True,
            kv_cache_memory_bytes=job.cache_bytes,
            # So much has to be free; the cache has what the line above says.
            gpu_memory_utilization=job.memory_share,
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
        self._took_us: dict[str, list[float]] = {name: [] for name in HOST}
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
        """Notes what each step's metadata costs on the host, by the names of `HOST`."""
        builder = AttentionBackendEnum[attention].get_class().get_builder_cls()
        self._time("build_us", builder, "build")
        for name, (module, owner, method) in ((name, place) for name, places in HOST.items() for place in places):
            # The other model runner, and what another backend has, is not imported.
            found = getattr(sys.modules.get(module), owner, None)
            if found is not None:
                self._time(name, found, method)

    def _time(self, name: str, owner: type, method: str) -> None:
        former, took = getattr(owner, method), self._took_us[name]

        def timed(*args, **kwargs):
            before = time.perf_counter()
            done = former(*args, **kwargs)
            took.append(1e6 * (time.perf_counter() - before))
            return done

        setattr(owner, method, timed)

    def _add(self, prompt: list[int], tokens: int, logprobs: int | None = None) -> None:
        params = SamplingParams(
            temperature=0.0,
            logprobs=logprobs,
            max_tokens=tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._ids += 1
        self._engine.add_request(str(self._ids), {"type": "token", "prompt_token_ids": prompt}, params)

    def tokens(self, prompts: list[list[int]], count: int) -> list[list[int]]:
        """So many tokens of each, all decoded together."""
        return self._answers(prompts, count, None)[0]

    def tokens_and_gaps(self, prompts: list[list[int]], count: int) -> tuple[list[list[int]], list[list[float]]]:
        """Tokens, and by how much the logit of each was above that of the next best token."""
        return self._answers(prompts, count, 2)

    def _answers(
        self, prompts: list[list[int]], count: int, logprobs: int | None
    ) -> tuple[list[list[int]], list[list[float]]]:
        first = self._ids + 1
        for prompt in prompts:
            self._add(prompt, count, logprobs)
        answers: list[list[int]] = [[] for _ in prompts]
        gaps: list[list[float]] = [[] for _ in prompts]
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                number, new = int(output.request_id) - first, output.outputs[0]
                answers[number] += new.token_ids
                for candidates in new.logprobs or ():
                    # The sampled token, and the two best: the sampled one may be among them.
                    best, second = sorted((one.logprob for one in candidates.values()), reverse=True)[:2]
                    gaps[number].append(best - second)
        return answers, gaps

    def forget(self) -> None:
        """Empties the prefix cache."""
        self._engine.reset_prefix_cache()

    def decode(self, prompts: list[list[int]], settle: int, timed: int, profiled_steps: int, spare: int) -> dict:
        """Decode steps of all requests together: seconds of a step, host's part of it, and what the GPU does in those that are profiled."""
        steps = settle + timed + profiled_steps
        for prompt in prompts:
            self._add(prompt, steps + spare)
        seen, times, profiler, kernels = 0, [], Profiler(), []
        begun: dict[str, int] = {}
        host: dict[str, list[float]] = {}
        while seen <= steps and self._engine.has_unfinished_requests():
            if len(self._engine.step()) < len(prompts):
                continue
            if settle <= seen <= settle + timed:
                times.append(time.perf_counter())
            if seen == settle:
                begun = {name: len(took) for name, took in self._took_us.items()}
            if seen == settle + timed:
                host = {name: took[begun[name] :] for name, took in self._took_us.items()}
                if profiled_steps:
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
            **{name: statistics.median(took) if took else None for name, took in host.items()},
            "most_build_us": max(host["build_us"], default=None),
            **(profiled(kernels, profiled_steps) if kernels else {}),
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
    """Batches as they are asked for: `prime` puts prompts into the cache, `decode` times steps."""
    args = SimpleNamespace(**job.args | {"trace": Path(job.args["trace"]) if job.args["trace"] else None})
    workloads = list(chosen(args, job.vocabulary, job.most_tokens))
    engine = Engine(job, batches=job.batches, longest=job.longest, load_format="dummy")
    say("started", engine.about)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "prime" in asked:
                say("done", prime(engine, workloads[asked["prime"]]))
            else:
                say("done", decode(engine, workloads[asked["decode"]], job.steps, asked["profile"]))
        except Exception as error:
            traceback.print_exc()
            say("left_out", f"{type(error).__name__}: {error}")


def prime(engine: Engine, workload: Workload) -> dict:
    began = time.perf_counter()
    engine.forget()
    for level in workload.levels:
        engine.tokens(level, 1)
    return {
        "workload": workload.name,
        "requests": len(workload.prompts),
        "prompt_tokens": workload.tokens,
        "unique_tokens": workload.unique_pages * workload.page_size,
        "prefill_s": time.perf_counter() - began,
    }


def decode(engine: Engine, workload: Workload, steps: dict[str, int], profile: bool) -> dict:
    return engine.decode(
        workload.prompts, steps["settle"], steps["timed"], steps["profiled"] if profile else 0, steps["spare"]
    )


def greedy(job: SimpleNamespace) -> None:
    """Tokens of a small model, whose weights were saved."""
    longest = max(map(len, job.prompts)) + job.tokens + 1
    engine = Engine(job, batches=[len(job.prompts)], longest=longest, load_format="auto")
    tokens, gaps = engine.tokens_and_gaps(job.prompts, job.tokens)
    say("answers", {"tokens": tokens, "gaps": gaps})


def main() -> None:
    # Nobody waits for what it has to say once its parent is gone, and others want the GPU.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Imports take longest, and are done while the process before has the GPU.
    job = SimpleNamespace(**json.loads(sys.stdin.readline()))
    {"serve": serve, "greedy": greedy}[job.kind](job)
    os._exit(0)  # the driver takes the engine apart sooner than Python does


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        traceback.print_exc()
        say("failed", f"{type(error).__name__}: {error}")
        raise SystemExit(1) from error
