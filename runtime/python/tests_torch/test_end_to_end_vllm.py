"""`scripts/end_to_end --engine vllm` over a stand-in for vLLM: its processes, what they are asked, and what is kept of their answers."""

import json
import os
import subprocess
import sys
from pathlib import Path

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
    def __init__(self, vocabulary, block_size):
        self.requests, self.vocabulary = {}, vocabulary
        self.vllm_config = SimpleNamespace(
            use_v2_model_runner=os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1",
            scheduler_config=SimpleNamespace(async_scheduling=True),
            cache_config=SimpleNamespace(block_size=block_size),
        )

    def add_request(self, name, prompt, params):
        assert prompt["type"] == "token" and params.ignore_eos and params.temperature == 0
        self.requests[name] = [params.max_tokens, sum(prompt["prompt_token_ids"])]

    def has_unfinished_requests(self):
        return bool(self.requests)

    def abort_request(self, names):
        for name in names:
            self.requests.pop(name, None)

    def reset_prefix_cache(self):
        return True

    def step(self):
        from vllm.v1.attention.backends.registry import Builder
        Builder().build()
        outputs = []
        for name, request in list(self.requests.items()):
            request[0] -= 1
            request[1] += 1
            token = SimpleNamespace(token_ids=[request[1] % self.vocabulary])
            outputs.append(SimpleNamespace(request_id=name, outputs=[token]))
            if request[0] == 0:
                del self.requests[name]
        return outputs

class LLM:
    def __init__(self, model, **options):
        global loaded
        loaded = True
        config = json.load(open(model + "/config.json"))
        if options["load_format"] == "auto":
            assert os.path.exists(model + "/model.safetensors")
        if options["attention_config"]["backend"] == "TRITON_ATTN":
            raise RuntimeError("no such kernel")
        self.llm_engine = Engine(config["vocab_size"], options["block_size"])
""",
    "vllm/sampling_params.py": "import enum\nRequestOutputKind = enum.Enum('RequestOutputKind', 'DELTA')\n",
    "vllm/v1/__init__.py": "",
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


def test_each_engine_answers_for_every_batch(tmp_path):
    for name, text in STAND_IN.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    output = tmp_path / "measured.json"
    options = (
        "--engine vllm --small --device cpu --models llama-3-8b --workloads shared,trees --trees 1 --steps 8 --runner 2"
    )
    backends = ["--backends", "tilewright,flash_attention_3,triton"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options.split(), *backends, "--output", str(output)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )
    assert done.returncode == 3, f"something was left out: {done.stderr}"
    found = json.loads(output.read_text())
    batches = ["4 requests, 512 shared tokens", "tree 1,8,512_32,2048,256", "16 requests, 512 shared tokens"]
    served = [(run["backend"], run["workload"]) for run in found["serve"]]
    assert served == [(backend, batch) for backend in ("tilewright", "flash_attention_3") for batch in batches]
    assert {run["requests"] for run in found["serve"]} == {4, 32, 16}
    for run in found["serve"]:
        assert run["steps"] == 8 and run["step_ms"] > 0 and run["metadata_us"] > 0
        assert (run["runner"], run["flash_attention"], run["block_size"]) == (2, 3, 16)
    (greedy,) = found["greedy"]
    assert greedy["backend"] == "tilewright" and greedy["against"] == "flash_attention_3"
    assert greedy["equal_answers"] == greedy["prompts"] == 8 and greedy["tokens_each"] == 24
    assert [(item["what"], item["why"]) for item in found["left_out"]] == [
        (what, "RuntimeError: no such kernel") for what in ("llama-3-8b, triton", "greedy tokens, triton")
    ]
    assert "times the tokens/s of flash_attention_3" in done.stdout
