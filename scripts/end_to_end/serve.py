"""Decode steps of whole models: seconds of a step, tokens/s, and attention's share of what the GPU does."""

from __future__ import annotations

import traceback

import models
import torch
import workloads
from clock import Clock
from engine import Backend, Session, Steps
from kernels import profiled


def measure(results, device: torch.device, backends: list[Backend], clock: Clock, args) -> None:
    for name in args.models.split(","):
        if clock.left() < 15:
            results.left_out(name, "the time is over")
            continue
        model = models.build(name, device, args.small)
        config = model.config
        most_tokens = int(args.cache_gib * 2**30) // models.token_bytes(config)
        for workload in workloads.chosen(args, config.vocab_size, most_tokens):
            for backend in backends:
                if backend.slow and not workload.name.endswith("shared tokens"):
                    continue  # minutes for what the first workload has shown
                what = f"{name}, {workload.name}, {backend.name}"
                if clock.left() < (25 if backend.slow else 12):
                    results.left_out(what, "the time is over")
                    continue
                try:
                    record = _one(model, workload, backend, clock, args.steps, most_tokens)
                    results.add("serve", {"model": name + (" (small)" if args.small else ""), **record})
                except Exception as error:
                    traceback.print_exc()
                    results.left_out(what, f"{type(error).__name__}: {error}")
        del model
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _one(model, workload: workloads.Workload, backend: Backend, clock: Clock, timed: int, most_tokens: int) -> dict:
    batch = len(workload.prompts)
    steps = Steps(2, min(timed, 4), 1) if backend.slow else Steps(6, timed, 4)
    longest = workload.longest + steps.all()
    size = workload.page_size
    blocks = workload.unique_pages + batch * (2 + steps.all() // size) + 64
    if backend.slow:
        # Its steps read through an index of all tokens of all requests, which has to be as long as the cache.
        blocks = max(blocks, (workload.tokens + batch * steps.all()) // size + 64)
    if blocks * size > 2.2 * most_tokens:
        raise MemoryError(f"{blocks * size} tokens of K and V are more than --cache-gib allows")
    began = clock.spent()
    session = Session(model, backend, block_size=size, num_blocks=blocks, batch=batch, longest=longest, steps=steps)
    try:
        left = min(clock.left(), 240)
        for level in workload.levels:
            session.prime(level, left)
        found = session.decode(workload.prompts, left)
    finally:
        session.close()
    record = {
        "workload": workload.name,
        "backend": backend.name,
        "requests": batch,
        "prompt_tokens": workload.tokens,
        "unique_tokens": workload.unique_pages * size,
        **found,
        "tokens_per_s": 1e3 * batch / found["step_ms"],
        "wall_s": clock.spent() - began,
    }
    if session.profile:
        record |= profiled(session.profile, steps.profiled)
    return record
