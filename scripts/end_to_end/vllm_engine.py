"""vLLM, with one attention backend or another: the same parts as through Transformers, each engine in a process of its own."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import models
import small_model
from clock import Clock

WORKER = Path(__file__).with_name("vllm_worker.py")
STARTS_S = 25
"""Of an engine, about: what is begun with less left is not ended."""


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

    def run(self, job: dict, clock: Clock) -> Iterator[tuple[str, object]]:
        """What the job has to say, as it says it. Its log goes to ours."""
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.close()
        while True:
            try:
                line = self._lines.get(timeout=max(1.0, min(clock.left(), 600)))
            except queue.Empty:
                yield "failed", "it said nothing until the time was over"
                return
            if line is None:
                yield "failed", f"the process ended with {self._process.wait()}"
                return
            if not line.startswith("@"):
                print("  " + line, end="", flush=True)
                continue
            kind, what = json.loads(line[1:])
            if kind == "done":
                return
            yield kind, what
            if kind == "failed":
                return

    def close(self) -> None:
        """Waits for its end, as the GPU has room for the next one then."""
        try:
            if self._process.stdin and not self._process.stdin.closed:
                self._process.kill()
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Workers:
    """The next process imports while one has the GPU."""

    def __init__(self, runner: str) -> None:
        self._runner = runner
        self._next = Worker(runner)

    def run(self, job: dict, clock: Clock, last: bool = False) -> Iterator[tuple[str, object]]:
        worker, self._next = self._next or Worker(self._runner), None
        if not last:
            self._next = Worker(self._runner)
        try:
            yield from worker.run(job, clock)
        finally:
            worker.close()

    def close(self) -> None:
        if self._next is not None:
            self._next.close()


def measure(results, args, device, clock: Clock) -> None:
    """The parts that were asked for, in the order of what they are worth."""
    chosen, parts = backends(args.backends.split(",")), args.parts.split(",")
    workers = Workers(args.runner)
    try:
        with tempfile.TemporaryDirectory() as folder:
            if "serve" in parts:
                for number, name in enumerate(args.models.split(",")):
                    kinds = args.workloads + (",wide" if "host" in parts and number == 0 else "")
                    _serve(results, args, workers, chosen, name, kinds, Path(folder) / str(number), clock)
            if "greedy" in parts:
                _greedy(results, args, device, workers, chosen, Path(folder) / "small", clock)
    finally:
        workers.close()


def _job(args, backend: Backend, kind: str, folder: Path, config) -> dict:
    return {
        "kind": kind,
        "folder": str(folder),
        "attention": backend.attention,
        "graphs": backend.graphs,
        "options": backend.options,
        "block_size": args.block_size,
        "token_bytes": models.token_bytes(config),
    }


def _serve(
    results, args, workers: Workers, chosen: list[Backend], name: str, kinds: str, folder: Path, clock: Clock
) -> None:
    config = models.config_of(name, args.small)
    config.architectures = [models.ARCHITECTURES[name]]
    config.save_pretrained(folder)
    of_workloads = {key: getattr(args, key) for key in ("small", "requests", "prefix", "trees")}
    for backend in chosen:
        if clock.left() < STARTS_S + 10:
            results.left_out(f"{name}, {backend.name}", "the time is over")
            continue
        job = _job(args, backend, "serve", folder, config) | {
            "args": of_workloads | {"workloads": kinds, "trace": str(args.trace) if args.trace else None},
            "vocabulary": config.vocab_size,
            "most_tokens": int(args.cache_gib * 2**30) // models.token_bytes(config),
            "steps": args.steps,
        }
        for kind, what in workers.run(job, clock):
            if kind == "started":
                print(f"{name}, {backend.name}: {what}", flush=True)
            elif kind == "serve":
                about = {"engine": "vllm", "model": name + (" (small)" if args.small else ""), "backend": backend.name}
                results.add("serve", about | what)
            elif kind == "left_out":
                results.left_out(f"{name}, {what[0]}, {backend.name}", what[1])
            else:
                results.left_out(f"{name}, {backend.name}", what)
    _explain(results, name)


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
                f"gaps {one['step_ms'] - gpu:.2f} ms, metadata on the host {(one.get('metadata_us') or 0.0) / 1e3:.2f} ms"
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
    answers: dict[str, list[list[int]]] = {}
    for number, backend in enumerate(chosen):
        job = _job(args, backend, "greedy", folder, model.config)
        job |= {"prompts": prompts, "tokens": 24 if args.small else small_model.TOKENS}
        for kind, what in workers.run(job, clock, last=number + 1 == len(chosen)):
            if kind == "answers":
                answers[backend.name] = what
            elif kind == "failed":
                results.left_out(f"greedy tokens, {backend.name}", what)
    against = next((name for name in answers if not name.startswith("tilewright")), None)
    if against is None:
        results.left_out("greedy tokens", "no backend of the engine's own answered")
        return
    exact = model.float()
    for name, found in answers.items():
        if name != against:
            record = small_model.compare(exact, prompts, answers[against], found)
            results.add("greedy", {"engine": "vllm", "backend": name, "against": against, **record})
