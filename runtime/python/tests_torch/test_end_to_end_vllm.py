"""`scripts/end_to_end --engine vllm` over a stand-in for vLLM: its processes, what they are asked, and what is kept of their answers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "end_to_end"

# Answers one token a step to every request. That of a request's prompt is its sum, so that answers tell which prompt they are of.
STAND_IN = {
    "vllm/__init__.py": """
import json
import os
from types import SimpleNamespace

loaded = False

class SamplingParams:
    def __init__(self, **options):
        self.__dict__.update(options)

class Engine:
    def __init__(self, vocabulary, block_size, parts):
        self.requests, self.vocabulary, self.parts = {}, vocabulary, parts
        self.vllm_config = SimpleNamespace(
            use_v2_model_runner=os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1",
            scheduler_config=SimpleNamespace(async_scheduling=True),
            cache_config=SimpleNamespace(block_size=block_size),
        )

    def add_request(self, name, prompt, params):
        assert prompt["type"] == "token" and params.ignore_eos and params.temperature == 0
        self.requests[name] = [params.max_tokens, sum(prompt["prompt_token_ids"]), params.logprobs]

    def has_unfinished_requests(self):
        return bool(self.requests)

    def abort_request(self, names):
        for name in names:
            self.requests.pop(name, None)

    def reset_prefix_cache(self):
        return True

    def step(self):
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner
        GPUModelRunner()._build_attention_metadata()
        outputs = []
        for name, request in list(self.requests.items()):
            request[0] -= 1
            request[1] += 1
            token = SimpleNamespace(token_ids=[request[1] % self.vocabulary], logprobs=None)
            if self.parts and request[1] % 7 == 0:
                token.token_ids[0] ^= 1  # answers part, of two tokens that are nearly as good
            if request[2] == 2:
                best = SimpleNamespace(logprob=-1.0), SimpleNamespace(logprob=-1.0 - 2**-9)
                token.logprobs = [dict(zip((token.token_ids[0], token.token_ids[0] ^ 1), best))]
            outputs.append(SimpleNamespace(request_id=name, outputs=[token]))
            if request[0] == 0:
                del self.requests[name]
        return outputs

class LLM:
    def __init__(self, model, **options):
        global loaded
        loaded = True
        import vllm.v1.worker.gpu_model_runner
        config = json.load(open(model + "/config.json"))
        if options["load_format"] == "auto":
            assert os.path.exists(model + "/model.safetensors")
        if options["attention_config"]["backend"] == "TRITON_ATTN":
            raise RuntimeError("no such kernel")
        assert options["kv_cache_dtype"] == os.environ.get("KV", "auto")
        custom = options["attention_config"]["backend"] == "CUSTOM"
        if custom and os.environ.get("FAILS_TO_START"):
            raise RuntimeError("no such GPU")
        self.llm_engine = Engine(config["vocab_size"], options["block_size"], custom and os.environ.get("PARTS"))
""",
    "vllm/sampling_params.py": "import enum\nRequestOutputKind = enum.Enum('RequestOutputKind', 'DELTA')\n",
    "vllm/v1/__init__.py": "",
    "vllm/v1/worker/__init__.py": "",
    "vllm/v1/worker/gpu_model_runner.py": """
import time

class GPUModelRunner:
    def _build_attention_metadata(self):
        from vllm.v1.attention.backends.registry import Builder
        time.sleep(0.001)
        Builder().build()
""",
    "vllm/v1/attention/__init__.py": "",
    "vllm/v1/attention/backends/__init__.py": "",
    "vllm/v1/attention/backends/fa_utils.py": "get_flash_attn_version = lambda: 3\n",
    "vllm/v1/attention/backends/registry.py": """
import enum
from types import SimpleNamespace

class Builder:
    def build(self):
        return None

class AttentionBackendEnum(enum.Enum):
    CUSTOM, FLASH_ATTN, TRITON_ATTN = range(3)

    def get_class(self):
        import vllm
        assert vllm.loaded, "plug-ins are loaded with the first engine"
        return SimpleNamespace(get_builder_cls=lambda: Builder)
""",
    "vllm-0.24.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.24.0\n",
}


@pytest.mark.parametrize("logit", [0.3, 0.5, 1.0, 5.5, 127.0])
def test_a_unit_is_the_distance_to_the_next_bf16_number(logit, monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT)
    import small_model

    number = torch.tensor([logit]).bfloat16()
    after = (number.view(torch.int16) + 1).view(torch.bfloat16)
    assert small_model.bf16_unit(logit) == (after.float() - number.float()).item()


def measured(folder, options, backends, **environment):
    """What `scripts/end_to_end` says, and writes."""
    for name, text in STAND_IN.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    output = folder / "measured.json"
    command = ["--engine", "vllm", "--small", "--device", "cpu", *options.split(), "--backends", backends]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *command, "--output", str(output)],
        capture_output=True,
        text=True,
        env=os.environ | environment | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
    )
    return done, json.loads(output.read_text())


def test_each_engine_answers_for_every_batch(tmp_path):
    options = "--models llama-3-8b --workloads shared,trees --trees 1 --steps 8 --runner 2"
    done, found = measured(tmp_path, options, "tilewright,flash_attention_3,triton")
    assert done.returncode == 3, f"something was left out: {done.stderr}"
    batches = ["4 requests, 512 shared tokens", "tree 1,8,512_32,2048,256", "16 requests, 512 shared tokens"]
    served = [(run["backend"], run["workload"]) for run in found["serve"]]
    assert served == [(backend, batch) for backend in ("tilewright", "flash_attention_3") for batch in batches]
    assert {run["requests"] for run in found["serve"]} == {4, 32, 16}
    for run in found["serve"]:
        assert run["steps"] == 8 and run["step_ms"] > 0 and 0 < run["build_us"] < 900 < run["metadata_us"]
        assert run["native_us"] is None, "none of the stand-in's backends is ours"
        assert (run["runner"], run["flash_attention"], run["block_size"]) == (2, 3, 16)
    (greedy,) = found["greedy"]
    assert greedy["backend"] == "tilewright" and greedy["against"] == "flash_attention_3"
    assert greedy["equal_answers"] == greedy["prompts"] == 8 and greedy["tokens_each"] == 24
    assert [(item["what"], item["why"]) for item in found["left_out"]] == [
        (what, "RuntimeError: no such kernel") for what in ("llama-3-8b (small), triton", "greedy tokens, triton")
    ]
    assert "times the tokens/s of flash_attention_3" in done.stdout


def test_engines_take_turns(tmp_path):
    options = "--models qwen2.5-7b --workloads apart --parts serve --steps 4 --rounds 3"
    done, found = measured(tmp_path, options, "tilewright,flash_attention_3")
    assert done.returncode == 0, done.stderr
    batches = ["4 requests of 128 tokens, nothing shared", "2 requests of 64 tokens, nothing shared"]
    served = [(run["workload"], run["backend"]) for run in found["serve"]]
    assert served == [(batch, backend) for batch in batches for backend in ("tilewright", "flash_attention_3")]
    for run in found["serve"]:
        assert run["unique_tokens"] == run["prompt_tokens"] + run["requests"] * 15, "only pages of 16 that begin"
        assert run["took_turns"] and len(run["round_ms"]) == 3
        assert run["step_ms"] == sorted(run["round_ms"])[1]
    assert "| step of tilewright beside |" in done.stdout

    # A second run adds to the file, and nothing to that of another engine.
    options = "--models qwen2.5-7b --workloads apart --parts serve --steps 4 --append"
    done, both = measured(tmp_path, options, "flash_attention_3")
    assert done.returncode == 0 and both["serve"][:4] == found["serve"] and len(both["serve"]) == 6
    assert not both["serve"][4]["took_turns"]


def test_an_engine_that_fails_leaves_the_others(tmp_path):
    options = "--models llama-3-8b --workloads apart --parts serve --steps 4 --rounds 2 --kv-cache-dtype fp8"
    done, found = measured(tmp_path, options, "tilewright,flash_attention_3", FAILS_TO_START="1", KV="fp8")
    assert done.returncode == 3
    assert [(item["what"], item["why"]) for item in found["left_out"]] == [
        ("llama-3-8b (small), K and V in fp8, tilewright", "RuntimeError: no such GPU")
    ]
    assert [(run["backend"], len(run["round_ms"])) for run in found["serve"]] == [("flash_attention_3", 2)] * 2
    assert not any(run["took_turns"] for run in found["serve"])


def test_where_answers_part_the_gap_of_the_two_best_is_counted(tmp_path):
    done, found = measured(tmp_path, "--parts greedy", "tilewright,flash_attention_3", PARTS="1")
    assert done.returncode == 0, done.stderr
    (greedy,) = found["greedy"]
    assert greedy["equal_answers"] == 0, "one token in seven is another"
    assert len(greedy["gap_units"]) == len(greedy["against_gap_units"]) == greedy["prompts"] == 8
    # 2**-9 is one unit of a logit in [0.25, 0.5), and less of a larger one.
    assert all(0 < units <= 1 for units in greedy["gap_units"])
    assert "8 | 0 | 8 | 8 | 8 |" in done.stdout
    assert greedy["largest_bf16_error"] > 0 and 0 <= greedy["beyond_bf16"] <= 8
