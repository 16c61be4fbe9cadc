"""Greedy tokens of a small model beside those of the engine's own attention."""

from __future__ import annotations

import copy

import small_model
import torch
import transformers
from clock import Clock
from engine import Backend


def _tokens(model, prompts: list[list[int]], backend: Backend, tokens: int, page_size: int) -> small_model.Answers:
    generation = transformers.GenerationConfig(do_sample=False, max_new_tokens=tokens, eos_token_id=-1, pad_token_id=0)
    config = transformers.ContinuousBatchingConfig(
        block_size=page_size,
        num_blocks=sum(len(prompt) + tokens for prompt in prompts) // page_size + 2 * len(prompts),
        max_batch_tokens=1024,
        **backend.options,
    )
    model.set_attn_implementation(backend.implementation)
    done = model.generate_batch(prompts, generation, continuous_batching_config=config, warmup=False)
    answers = [answer.generated_tokens for answer in done.values()]
    if len(answers) != len(prompts) or any(len(answer) != tokens for answer in answers):
        errors = {answer.error for answer in done.values() if answer.error}
        raise RuntimeError(f"{backend.name}: {len(answers)} of {len(prompts)} requests ended, {errors}")
    return small_model.Answers(answers, [])


def measure(results, device: torch.device, backends: list[Backend], clock: Clock, small: bool) -> None:
    """The engine's own, SDPA, is the measure; FlashAttention beside it says how much of a difference is usual."""
    if clock.left() < 30:
        results.left_out("greedy tokens", "the time is over")
        return
    model, prompts = small_model.build(device, small), small_model.prompts(small)
    tokens, page_size = (24, 32) if small else (small_model.TOKENS, 256)
    own = Backend("sdpa", "paged|sdpa", {"use_cuda_graph": (False, False), "use_async_batching": False})
    expected = _tokens(model, prompts, own, tokens, page_size)
    found = {
        backend.name: _tokens(model, prompts, backend, tokens, page_size)
        for backend in backends
        if backend.implementation != own.implementation
    }
    model.set_attn_implementation("sdpa")
    exact = copy.deepcopy(model).float()
    for name, answers in found.items():
        compared = small_model.compare(exact, model, prompts, expected, answers)
        results.add("greedy", {"backend": name, "against": own.name, **compared})
