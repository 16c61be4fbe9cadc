"""Decode steps of whole models: seconds of a step, tokens/s, and attention's share of what the GPU does."""

from __future__ import annotations

import re
import traceback

import torch
import transformers
import workloads
from engine import Backend, Clock, Session, Steps

CONFIGS = {
    "llama-3-8b": (
        transformers.LlamaConfig,
        {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "rope_theta": 500000.0, "rms_norm_eps": 1e-5},
    ),
    "qwen2.5-7b": (
        transformers.Qwen2Config,
        {"vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28}
        | {"num_attention_heads": 28, "num_key_value_heads": 4, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6},
    ),
}
SMALL = {"vocab_size": 512, "hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 64}

# Kernels of attention by name: ours, FlashAttention's, and those behind PyTorch's SDPA.
ATTENTION = re.compile(r"^(decode_|merge_w)|flash|fmha|attention|sdpa|softmax", re.IGNORECASE)
# What gathers K and V for SDPA and writes new ones.
INDEXING = re.compile(r"index|gather|scatter|CatArray", re.IGNORECASE)


def build(name: str, device: torch.device, small: bool):
    """A model with random weights, in bf16."""
    if name not in CONFIGS:
        raise SystemExit(f"error: there is no model {name}: {', '.join(CONFIGS)}")
    kind, of = CONFIGS[name]
    of = {**of, **(SMALL | {"num_attention_heads": 8, "num_key_value_heads": 2} if small else {})}
    config = kind(**of, max_position_embeddings=1 << 17, tie_word_embeddings=False, eos_token_id=None)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.eval().requires_grad_(False)


def measure(results, device: torch.device, backends: list[Backend], clock: Clock, args) -> None:
    for name in args.models.split(","):
        if clock.left() < 15:
            results.left_out(name, "the time is over")
            continue
        model = build(name, device, args.small)
        config = model.config
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        token_bytes = 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * dim
        most_tokens = int(args.cache_gib * 2**30) // token_bytes
        for workload in _workloads(args, config.vocab_size, most_tokens):
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


def _workloads(args, vocabulary: int, most_tokens: int):
    scale = 16 if args.small else 1
    for kind in args.workloads.split(","):
        if kind == "shared":
            yield workloads.shared(
                vocabulary, max(2, args.requests // scale), args.prefix // scale, 256 // scale, 256 // scale
            )
        elif kind == "trees":
            yield from workloads.trees(vocabulary, args.trees, most_tokens, scale)
        elif kind == "trace":
            yield workloads.conversations(vocabulary, args.trace, most_tokens, scale=scale)
        else:
            raise SystemExit(f"error: there is no workload {kind}: shared, trees, trace")


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
        total = sum(us for _, us in session.profile)
        attention = sum(us for kernel, us in session.profile if ATTENTION.search(kernel))
        indexing = sum(us for kernel, us in session.profile if INDEXING.search(kernel))
        kernels: dict[str, float] = {}
        for kernel, us in session.profile:
            kernels[kernel[:80]] = kernels.get(kernel[:80], 0.0) + us / steps.profiled / 1e3
        record |= {
            "gpu_ms": total / steps.profiled / 1e3,
            "attention_ms": attention / steps.profiled / 1e3,
            "indexing_ms": indexing / steps.profiled / 1e3,
            "kernels_ms": dict(sorted(kernels.items(), key=lambda item: -item[1])[:12]),
        }
    return record
