"""vLLM, with one attention backend or another: the same parts as through Transformers, each engine in a process of its own."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import models
import small_model
import torch
import workloads
from clock import Clock

WORKER = Path(__file__).with_name("vllm_worker.py")
STARTS_S = 25
"""Of an engine, about: what is begun with less left is not ended."""
SETTLE, PROFILED = 8, 4
"""Decode steps of the full batch before those that are timed, and after them under the profiler."""
SPARE = 64
"""Tokens more that a request may have: those that began first decode while others are added."""
CONTEXT_BYTES = 6 << 30
"""Of an engine beside weights and cache: CUDA's context, graphs, and what a prefill needs, about."""


@dataclass
class Backend:
    """An attention, as vLLM names it, and other options of the engine."""

    name: str
    attention: str
    options: dict = field(default_factory=dict)
    graphs: str = "FULL_DECODE_ONLY"


BACKENDS = [
    Backend("tilewright", "CUSTOM"),
    Backend("tilewright-eager", "CUSTOM", graphs="NONE"),
    Backend("flash_attention_3", "FLASH_ATTN"),
    Backend("flash_attention_3-eager", "FLASH_ATTN", graphs="NONE"),
    # One prefix that all requests share is read once. Its steps are in no graph.
    Backend("flash_attention_3-cascade", "FLASH_ATTN", {"disable_cascade_attn": False}),
    Backend("triton", "TRITON_ATTN"),
]


def backends(names: list[str]) -> list[Backend]:
    known = {backend.name: backend for backend in BACKENDS}
    for name in names:
        if name not in known:
            raise SystemExit(f"error: there is no backend {name}: {', '.join(known)}")
    return [known[name] for name in names]


class Worker:
    """A process that has imported vLLM, or is about to, and waits for its job."""

    def __init__(self, runner: str) -> None:
        environment = os.environ | {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        # Without FlashInfer its sampler is not there either.
        environment.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
        environment.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        if runner:
            environment["VLLM_USE_V2_MODEL_RUNNER"] = {"1": "0", "2": "1"}[runner]
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def give(self, line: dict) -> None:
        """Its job, or what is next of it. A process that has ended says so by its answer."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()

    def answer(self, clock: Clock) -> tuple[str, object]:
        """The next thing that it has to say. Its log goes to ours."""
        while True:
            try:
                line = self._lines.get(timeout=max(1.0, min(clock.left(), 600)))
            except queue.Empty:
                return "failed", "it said nothing until the time was over"
            if line is None:
                return "failed", f"the process ended with {self._process.wait()}"
            if line.startswith("@"):
                kind, what = json.loads(line[1:])
                return kind, what
            print("  " + line, end="", flush=True)

    def ask(self, line: dict, clock: Clock) -> tuple[str, object]:
        self.give(line)
        return self.answer(clock)

    def close(self) -> None:
        """Waits for its end, as the GPU has room for the next one then."""
        self._process.kill()
        self._process.wait()


class Workers:
    """Processes that import vLLM while others have the GPU: as many as are taken at once."""

    def __init__(self, runner: str, count: int, at_once: int) -> None:
        self._runner, self._to_come = runner, count
        self._waiting: list[Worker] = []
        self._prepare(at_once)

    def _prepare(self, wanted: int) -> None:
        """As many as are wanted wait, or as are still to come."""
        while self._to_come and len(self._waiting) < wanted:
            self._to_come -= 1
            self._waiting.append(Worker(self._runner))

    @contextlib.contextmanager
    def taken(self, count: int) -> Iterator[list[Worker]]:
        """So many, which end with the block."""
        self._prepare(count)
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        # Their imports are done long before anything is timed.
        self._prepare(count)
        try:
            yield taken
        finally:
            for worker in taken:
                worker.close()

    def close(self) -> None:
        for worker in self._waiting:
            worker.close()


def measure(results, args, device, clock: Clock) -> None:
    """The parts that were asked for, in the order of what they are worth."""
    chosen, parts, names = backends(args.backends.split(",")), args.parts.split(","), args.models.split(",")
    engines = len(chosen) * (len(names) * ("serve" in parts) + ("greedy" in parts))
    workers = Workers(args.runner, engines, len(chosen) if args.rounds > 1 and "serve" in parts else 1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            if "serve" in parts:
                for number, name in enumerate(names):
                    kinds = args.workloads + (",wide" if "host" in parts and number == 0 else "")
                    _serve(results, args, device, workers, chosen, name, kinds, Path(folder) / str(number), clock)
            if "greedy" in parts:
                _greedy(results, args, device, workers, chosen, Path(folder) / "small", clock)
    finally:
        workers.close()


def _job(args, backend: Backend, kind: str, folder: Path) -> dict:
    return {
        "kind": kind,
        "folder": str(folder),
        "attention": backend.attention,
        "graphs": backend.graphs,
        "options": backend.options,
        "block_size": args.block_size,
        "kv_cache_dtype": args.kv_cache_dtype,
    }


def _serve(
    results, args, device, workers: Workers, chosen: list[Backend], name: str, kinds: str, folder: Path, clock: Clock
) -> None:
    """All batches of a model. Of several rounds engines take turns where the GPU holds all of them, so that all see the same clocks."""
    config = models.config_of(name, args.small)
    config.architectures = [models.ARCHITECTURES[name]]
    config.save_pretrained(folder)
    token_bytes = models.token_bytes(config)
    most_tokens = int(args.cache_gib * 2**30) // token_bytes
    of_workloads = {key: getattr(args, key) for key in ("small", "requests", "prefix", "trees", "trace")}
    of_workloads |= {"workloads": kinds}
    batches = list(workloads.chosen(SimpleNamespace(**of_workloads), config.vocab_size, most_tokens))
    steps = SETTLE + args.steps + PROFILED + SPARE
    cache = max(batch.cache_tokens(args.block_size, steps) for batch in batches) * token_bytes + 2**28
    together = args.rounds > 1 and _fit(device, len(chosen), models.weight_bytes(config) + cache + CONTEXT_BYTES)
    for group in [chosen] if together else [[backend] for backend in chosen]:
        if clock.left() < STARTS_S + 10:
            for backend in group:
                results.left_out(f"{name}, {backend.name}", "the time is over")
            continue
        job = {
            "args": of_workloads | {"trace": str(args.trace) if args.trace else None},
            "vocabulary": config.vocab_size,
            "most_tokens": most_tokens,
            "batches": sorted({len(batch.prompts) for batch in batches}),
            "longest": max(batch.longest for batch in batches) + steps,
            "cache_bytes": cache,
            "steps": {"settle": SETTLE, "timed": args.steps, "profiled": PROFILED, "spare": SPARE},
            "memory_share": 0.5 / len(group),
        }
        with workers.taken(len(group)) as taken:
            for backend, worker in zip(group, taken):
                worker.give(_job(args, backend, "serve", folder) | job)
            said = name + (" (small)" if args.small else "")
            said += f", K and V in {args.kv_cache_dtype}" if args.kv_cache_dtype != "auto" else ""
            _Served(results, said, group, taken, clock).run(
                [batch.name for batch in batches], args.rounds
            )
    _explain(results, name)


def _fit(device, engines: int, each: int) -> bool:
    """Whether the GPU holds so many engines."""
    return device.type != "cuda" or engines * each <= torch.cuda.get_device_properties(device).total_memory


class _Served:
    """Engines of one model that are there at the same time, and what they are asked."""

    def __init__(self, results, model: str, group: list[Backend], taken: list[Worker], clock: Clock) -> None:
        self._results, self._model, self._clock = results, model, clock
        self._workers = {backend.name: worker for backend, worker in zip(group, taken)}
        self._about: dict[str, dict] = {}

    def run(self, batches: list[str], rounds: int) -> None:
        for name in list(self._workers):
            kind, what = self._workers[name].answer(self._clock)
            if kind == "started":
                print(f"{self._model}, {name}: {what}", flush=True)
                self._about[name] = what
            else:
                self._fail(name, what)
        for number, batch in enumerate(batches):
            self._batch(number, batch, rounds)

    def _batch(self, number: int, batch: str, rounds: int) -> None:
        primed = {name: self._ask(name, batch, {"prime": number}) for name in list(self._workers)}
        names = [name for name, found in primed.items() if found is not None]
        timed: dict[str, list[dict]] = {name: [] for name in names}
        for turn in range(rounds):
            # There and back again: a GPU that grows warm is no engine's advantage.
            for name in names if turn % 2 == 0 else names[::-1]:
                if name in timed:
                    found = self._ask(name, batch, {"decode": number, "profile": turn + 1 == rounds})
                    if found is None:
                        del timed[name]
                    else:
                        timed[name].append(found)
        for name, found in timed.items():
            record = {"engine": "vllm", "model": self._model, "backend": name}
            record |= primed[name] | _of_rounds(found) | self._about[name] | {"took_turns": len(self._workers) > 1}
            record["tokens_per_s"] = 1e3 * record["requests"] / record["step_ms"]
            self._results.add("serve", record)

    def _ask(self, name: str, batch: str, command: dict) -> dict | None:
        """Nothing where it failed, which is noted."""
        if self._clock.left() < 5:
            self._results.left_out(f"{self._model}, {batch}, {name}", "the time is over")
            return None
        kind, what = self._workers[name].ask(command, self._clock)
        if kind == "done":
            return what
        if kind == "left_out":
            self._results.left_out(f"{self._model}, {batch}, {name}", what)
        else:
            self._fail(name, what)
        return None

    def _fail(self, name: str, why) -> None:
        """An engine that has ended is asked nothing more."""
        self._workers.pop(name).close()
        self._results.left_out(f"{self._model}, {name}", why)


def _of_rounds(rounds: list[dict]) -> dict:
    """One record of a batch: medians of its rounds, and the time of each."""
    record = dict(rounds[-1])  # the one with a profile
    for key in ("step_ms", "median_step_ms", "build_us", "metadata_us", "native_us"):
        known = [found[key] for found in rounds if found[key] is not None]
        record[key] = statistics.median(known) if known else None
    record["round_ms"] = [found["step_ms"] for found in rounds]
    return record


def _explain(results, name: str, enough: float = 1.25) -> None:
    """Says how much faster each batch is, and where time goes where that is little."""
    runs = [run for run in results.of("serve") if run["model"].split(" ")[0] == name]
    ours = {run["workload"]: run for run in runs if run["backend"] == "tilewright"}
    for run in runs:
        mine = ours.get(run["workload"])
        if mine is None or run["backend"].startswith("tilewright"):
            continue
        ratio = run["step_ms"] / mine["step_ms"]
        print(f"{name}, {run['workload']}: {ratio:.2f} times the tokens/s of {run['backend']}", flush=True)
        if ratio >= enough:
            continue
        for one in (mine, run):
            gpu = one.get("gpu_ms", 0.0)
            print(
                f"  {one['backend']}: {one['step_ms']:.2f} ms a step, the GPU busy for {gpu:.2f} ms, attention {one.get('attention_ms', 0.0):.2f} ms, "
                f"gaps {one['step_ms'] - gpu:.2f} ms, metadata on the host {(one.get('metadata_us') or 0.0) / 1e3:.2f} ms, "
                f"the backend's part of it {(one.get('build_us') or 0.0) / 1e3:.2f} ms"
            )
            for kernel, ms in one.get("kernels_ms", {}).items():
                print(f"    {ms:8.3f} ms {kernel}")


def _greedy(results, args, device, workers: Workers, chosen: list[Backend], folder: Path, clock: Clock) -> None:
    """FlashAttention 3 is the measure; where tokens part, the model in f32 says how close the two were."""
    if len(chosen) < 2 or clock.left() < 2 * STARTS_S:
        results.left_out("greedy tokens", "the time is over" if len(chosen) > 1 else "there is one backend")
        return
    model, prompts = small_model.build(device, args.small), small_model.prompts(args.small)
    model.save_pretrained(folder)
    tokens = 24 if args.small else small_model.TOKENS
    cache = sum(len(prompt) + tokens + 2 * args.block_size for prompt in prompts) * models.token_bytes(model.config)
    answers: dict[str, small_model.Answers] = {}
    for backend in chosen:
        job = _job(args, backend, "greedy", folder)
        job |= {"prompts": prompts, "tokens": tokens, "cache_bytes": cache + 2**28, "memory_share": 0.5}
        with workers.taken(1) as (worker,):
            kind, what = worker.ask(job, clock)
        if kind == "answers":
            answers[backend.name] = small_model.Answers(**what)
        else:
            results.left_out(f"greedy tokens, {backend.name}", what)
    against = next((name for name in answers if not name.startswith("tilewright")), None)
    if against is None:
        results.left_out("greedy tokens", "no backend of the engine's own answered")
        return
    rounded, exact = model, copy.deepcopy(model).float()
    for name, found in answers.items():
        if name != against:
            record = small_model.compare(exact, rounded, prompts, answers[against], found)
            results.add("greedy", {"engine": "vllm", "backend": name, "against": against, **record})
