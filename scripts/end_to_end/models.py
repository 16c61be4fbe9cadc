"""The models: sizes as published, weights random."""

from __future__ import annotations

import torch
import transformers

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
ARCHITECTURES = {"llama-3-8b": "LlamaForCausalLM", "qwen2.5-7b": "Qwen2ForCausalLM"}
SMALL = {"vocab_size": 512, "hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 64}


def config_of(name: str, small: bool):
    """Its configuration, in bf16."""
    if name not in CONFIGS:
        raise SystemExit(f"error: there is no model {name}: {', '.join(CONFIGS)}")
    kind, of = CONFIGS[name]
    of = {**of, **(SMALL | {"num_attention_heads": 8, "num_key_value_heads": 2} if small else {})}
    return kind(**of, max_position_embeddings=1 << 17, tie_word_embeddings=False, eos_token_id=None, dtype="bfloat16")


def build(name: str, device: torch.device, small: bool):
    """A model with random weights, in bf16."""
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config_of(name, small), dtype=torch.bfloat16)
    return model.eval().requires_grad_(False)


def weight_bytes(config) -> int:
    """Of all weights, in bf16."""
    with torch.device("meta"):
        return 2 * sum(part.numel() for part in transformers.AutoModelForCausalLM.from_config(config).parameters())


def token_bytes(config) -> int:
    """Of K and V of all layers, in bf16."""
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * dim
