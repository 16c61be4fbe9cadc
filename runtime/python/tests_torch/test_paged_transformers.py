"""Transformers before 5.18: `paged|tilewright` gives the same tokens as `paged|sdpa`."""

from types import SimpleNamespace

import numpy as np
import pytest
import tilewright.transformers
import torch
import transformers
from tilewright import GraphPlan, Plan
from transformers.generation.configuration_utils import CompileConfig

LAYERS, TOKENS, PAGE = 3, 40, 64


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=2048,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    for parameter in model.parameters():  # logits of random models are nearly equal
        torch.nn.init.normal_(parameter, std=0.1) if parameter.dim() > 1 else None
    return model


@pytest.fixture(scope="module")
def prompts():
    random = torch.Generator().manual_seed(1)
    take = lambda count: torch.randint(1, 256, (count,), generator=random).tolist()
    prefix = take(600)
    return [prefix + take(9), prefix + take(300), take(5), prefix + take(1), take(256), take(33)]


def tokens_of(model, prompts, name, max_batch_tokens=700, **options):
    generation = transformers.GenerationConfig(do_sample=False, max_new_tokens=TOKENS, eos_token_id=-1, pad_token_id=0)
    batching = transformers.ContinuousBatchingConfig(
        block_size=PAGE, num_blocks=100, max_batch_tokens=max_batch_tokens, **options
    )
    model.set_attn_implementation(name)
    done = model.generate_batch(prompts, generation, continuous_batching_config=batching, progress_bar=False)
    return [request.generated_tokens for request in done.values()]


@pytest.fixture(scope="module")
def expected(model, prompts):
    tokens = tokens_of(model, prompts, "paged|sdpa")
    assert all(len(own) == TOKENS for own in tokens) and len({tuple(own) for own in tokens}) == len(prompts)
    return tokens


@pytest.fixture
def name():
    yield tilewright.transformers.register()
    tilewright.transformers.unregister()


@pytest.fixture
def runs(monkeypatch):
    """Plans that were run."""
    found = []
    for kind in (Plan, GraphPlan):
        former = kind.run
        monkeypatch.setattr(
            kind, "run", lambda plan, *a, former=former, **o: found.append(plan) or former(plan, *a, **o)
        )
    return found


@pytest.mark.parametrize("max_batch_tokens", [700, 128])
def test_tokens_are_the_same_however_prompts_are_cut(model, prompts, expected, name, runs, max_batch_tokens):
    assert tokens_of(model, prompts, name, max_batch_tokens) == expected
    assert len(runs) >= LAYERS * (TOKENS - 1), "Tilewright computed the steps"
    assert len(set(map(id, runs))) * LAYERS == len(runs), "each step is planned once for its layers"


def test_padded_steps_are_served_by_one_plan(model, prompts, expected, name, runs, monkeypatch):
    """As with CUDA graphs, whose steps are padded alike."""
    updates = []
    former = GraphPlan.update
    monkeypatch.setattr(GraphPlan, "update", lambda plan, *a, **o: updates.append(plan) or former(plan, *a, **o))
    compiled = CompileConfig(backend="eager", fullgraph=False, dynamic=True)
    assert tokens_of(model, prompts, name, decode_compile_config=compiled) == expected
    graphed = [plan for plan in runs if isinstance(plan, GraphPlan)]
    assert {plan.batch for plan in graphed} <= {1, 2, 4, 6} and len(set(map(id, graphed))) <= 4
    assert len(graphed) >= LAYERS * (TOKENS - 10)
    assert len(updates) >= TOKENS - 15, "plans follow the steps"


def test_block_tables_follow_the_engines_lists():
    from tilewright._paged_transformers import _BlockTables, _Request

    lists = {"a": [7, 8], "b": [9]}
    cache = SimpleNamespace(group_cache_managers=[SimpleNamespace(block_table=lists)])
    tables = _BlockTables()

    def found(*names):
        entries, lens = tables.of(cache, 0, [_Request(name, 30 + len(lists[name]), 1) for name in names])
        assert entries.dtype == lens.dtype == np.int32 and lens.tolist() == [31 + len(lists[name]) for name in names]
        assert all(entries[row, : len(lists[name])].tolist() == lists[name] for row, name in enumerate(names))
        return entries

    found("a", "b")
    lists["a"].append(10)
    lists["b"][0] = 11  # a page that was copied before it is written
    found("a", "b")
    found("b", "a")
    lists["c"] = list(range(100))
    found("c", "b", "a")
    lists["c"] = [5]
    assert found("c").shape[0] == 1
    assert tables.of(cache, 0, [])[0].shape[0] == 0


def test_a_plan_that_has_no_room_is_made_again(model, prompts, expected, name, runs, monkeypatch):
    former = GraphPlan.update
    refused = []

    def update(plan, *args, **options):
        if len(refused) < 2:
            refused.append(plan)
            return False
        return former(plan, *args, **options)

    monkeypatch.setattr(GraphPlan, "update", update)
    compiled = CompileConfig(backend="eager", fullgraph=False, dynamic=True)
    assert tokens_of(model, prompts, name, decode_compile_config=compiled) == expected
    assert len(refused) == 2 and runs[-1] not in refused


def test_what_is_not_served_is_refused(name):
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=128, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.set_attn_implementation(name)
    with pytest.raises(ValueError, match="continuous batching"):
        model(torch.arange(4).unsqueeze(0))
    for layer in model.model.layers:
        layer.self_attn.sliding_window = 16
    done = tokens_of(model, [[1, 2, 3]], name)
    assert not any(done), "the engine reports the request as failed"
