"""A small model with random weights, prompts for it, and what it means that its greedy tokens differ."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import transformers

PROMPTS, TOKENS = 64, 128
ROUNDING = 2**-5
"""Of the largest logit: candidates that lie closer may change places by rounding to bf16 (8 bits) in a few layers. A rule for all engines alike; how
far rounding goes at each place, the model in bf16 says (`beyond_bf16`)."""


def build(device: torch.device, small: bool):
    """In bf16, the same weights each time."""
    config = transformers.LlamaConfig(
        vocab_size=1024,
        hidden_size=256 if small else 1024,
        intermediate_size=512 if small else 2048,
        num_hidden_layers=2 if small else 8,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64 if small else 128,
        max_position_embeddings=4096,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    for parameter in model.parameters():  # logits of random models are nearly equal
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.05 if not small else 0.1)
    return model.eval().requires_grad_(False)


def prompts(small: bool) -> list[list[int]]:
    """Four groups of prompts with a common beginning, and prompts that share nothing."""
    random = torch.Generator().manual_seed(1)
    take = lambda count: torch.randint(1, 1024, (count,), generator=random).tolist()
    length = 100 if small else 700
    groups = [take(length) for _ in range(4)]
    count = 8 if small else PROMPTS
    return [(groups[i % 5] if i % 5 < 4 else []) + take(5 + 7 * (i % 11)) for i in range(count)]


@dataclass
class Answers:
    """Greedy tokens of each prompt, and by how much each token's logit was above the next best one's, as the engine saw it."""

    tokens: list[list[int]]
    gaps: list[list[float]]


def bf16_unit(logit: float) -> float:
    """The last place of a bf16 number of that size: 8 significant bits."""
    return 2.0 ** (math.frexp(logit)[1] - 8)


def compare(exact, rounded, prompts: list[list[int]], expected: Answers, found: Answers) -> dict:
    """Where answers part, the f32 model says how close the two tokens were. What comes after that has another past, and is not compared.

    The same model in bf16 through torch's own attention says there how far rounding alone moves a logit. An engine whose logits err by no more takes
    a token that is two such errors below the best one at most.

    The engine's own gap there is counted in units in the last place of the best logit: what rounding parts is a few units at most, and an error of attention is not.
    """
    same_tokens, equal, rounding, wrong, beyond = 0, 0, 0, 0, 0
    gaps, errors, units, against_units = [], [], [], []
    for number, (prompt, one, other) in enumerate(zip(prompts, expected.tokens, found.tokens)):
        parted = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), None)
        if parted is None:
            equal += 1
            same_tokens += len(one)
            continue
        same_tokens += parted
        ids = torch.tensor([prompt + one[:parted]], device=exact.device)
        with torch.no_grad():
            logits = exact(ids).logits[0, -1]
            error = (rounded(ids).logits[0, -1].float() - logits).abs().max().item()
        most = logits.abs().max().item()
        # Of the two tokens the worse one has to be nearly as good as the best of all.
        gap = (logits.max() - torch.minimum(logits[one[parted]], logits[other[parted]])).item() / most
        gaps.append(gap)
        rounding += gap <= ROUNDING
        wrong += gap > ROUNDING
        errors.append(error / most)
        beyond += gap > 2 * error / most
        # Engines give logarithms of probabilities, whose differences are those of logits; how large these are, the f32 model says.
        unit = bf16_unit(logits.max().item())
        if found.gaps and expected.gaps:
            units.append(round(found.gaps[number][parted] / unit, 3))
            against_units.append(round(expected.gaps[number][parted] / unit, 3))
    in_units = {"gap_units": sorted(units), "against_gap_units": sorted(against_units)} if found.gaps else {}
    return {
        "prompts": len(prompts),
        "tokens_each": len(expected.tokens[0]),
        "equal_answers": equal,
        "equal_tokens_before_parting": same_tokens,
        "parted_by_rounding": rounding,
        "wrong": wrong,
        "largest_gap": max(gaps, default=0.0),
        "beyond_bf16": beyond,
        "largest_bf16_error": max(errors, default=0.0),
        **in_units,
    }
