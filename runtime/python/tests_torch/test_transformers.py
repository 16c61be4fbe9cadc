"""Transformers' continuous batching gives the same tokens as SDPA."""

import pytest
import tilewright.transformers
import torch
import transformers
from tilewright import Plan


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=2048,
        attn_implementation="sdpa",
        eos_token_id=None,
        pad_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    for parameter in model.parameters():  # logits of random models are nearly equal
        torch.nn.init.normal_(parameter, std=0.1) if parameter.dim() > 1 else None
    return model


def tokens_of(model, prompts):
    options = transformers.GenerationConfig(do_sample=False, max_new_tokens=40, eos_token_id=None, pad_token_id=0)
    # Small steps: prompts are cut into chunks, and computed beside requests that decode.
    batching = transformers.ContinuousBatchingConfig(page_size=64, num_blocks=100, max_batch_tokens=128)
    done = model.generate_batch(prompts, options, continuous_batching_config=batching, progress_bar=False)
    return [done[key].generated_tokens for key in sorted(done, key=lambda key: int(key.rsplit("_", 1)[-1]))]


def test_generate_batch_gives_the_same_tokens(model, monkeypatch):
    random = torch.Generator().manual_seed(1)
    take = lambda count: torch.randint(1, 256, (count,), generator=random).tolist()
    prefix = take(600)
    prompts = [prefix + take(9), prefix + take(300), take(5), prefix + take(1), take(256), take(33)]
    expected = tokens_of(model, prompts)
    assert all(len(tokens) == 40 for tokens in expected) and len({tuple(tokens) for tokens in expected}) == 6
    runs, prompts_beside = [], []
    run, former = Plan.run, tilewright.transformers.sdpa_attention_forward
    monkeypatch.setattr(Plan, "run", lambda plan, *args, **options: runs.append(plan) or run(plan, *args, **options))
    monkeypatch.setattr(
        tilewright.transformers,
        "sdpa_attention_forward",
        lambda *args, **options: prompts_beside.append(args[2].shape[2]) or former(*args, **options),
    )
    tilewright.transformers.register()
    try:
        found = tokens_of(model, prompts)
    finally:
        tilewright.transformers.unregister()
    assert found == expected
    assert len(runs) >= 3 * 39, "Tilewright computed the steps"
    assert len(set(map(id, runs))) * 3 == len(runs), "each step is planned once for its three layers"
    assert max(prompts_beside) > 600, "a chunk of a prompt that reads the cache went to SDPA"


def test_generate_is_as_it_was(model):
    prompt = torch.arange(1, 60).unsqueeze(0)
    options = {"do_sample": False, "max_new_tokens": 10}
    expected = model.generate(prompt, **options)
    tilewright.transformers.register()
    try:
        assert torch.equal(model.generate(prompt, **options), expected)
    finally:
        tilewright.transformers.unregister()
