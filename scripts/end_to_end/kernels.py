"""What the GPU does in a step, by the names of kernels."""

from __future__ import annotations

import re

import torch

# Kernels of attention by name: ours, FlashAttention's, and those behind PyTorch's SDPA.
ATTENTION = re.compile(r"^(decode_|merge_w)|flash|fmha|attention|sdpa|softmax", re.IGNORECASE)
# vLLM's name for what writes new K and V.
CACHE = re.compile(r"reshape_and_cache")
# What gathers K and V for SDPA and writes new ones.
INDEXING = re.compile(r"index|gather|scatter|CatArray", re.IGNORECASE)


class Profiler:
    """Kernels and microseconds of what is queued between `start` and `stop`."""

    def __init__(self) -> None:
        self._profiler = None

    def start(self) -> None:
        torch.cuda.synchronize()
        self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        self._profiler.__enter__()

    def stop(self) -> list[tuple[str, float]]:
        """Nothing if it was not started."""
        if self._profiler is None:
            return []
        torch.cuda.synchronize()
        self._profiler.__exit__(None, None, None)
        events, self._profiler = self._profiler.events(), None
        return [
            (event.name, event.time_range.elapsed_us())
            for event in events
            if event.device_type == torch.autograd.DeviceType.CUDA
        ]


def profiled(profile: list[tuple[str, float]], steps: int) -> dict:
    """Milliseconds of a step by kernels, of a profile of kernels and microseconds."""
    total = sum(us for _, us in profile)
    attention = sum(us for kernel, us in profile if ATTENTION.search(kernel) and not CACHE.search(kernel))
    indexing = sum(us for kernel, us in profile if INDEXING.search(kernel))
    kernels: dict[str, float] = {}
    for kernel, us in profile:
        kernels[kernel[:80]] = kernels.get(kernel[:80], 0.0) + us / steps / 1e3
    return {
        "gpu_ms": total / steps / 1e3,
        "attention_ms": attention / steps / 1e3,
        "indexing_ms": indexing / steps / 1e3,
        "kernels_ms": dict(sorted(kernels.items(), key=lambda item: -item[1])[:12]),
    }
