"""Serves models through Hugging Face Transformers' continuous batching or vLLM, with Tilewright and with the engine's own attention, and compares.

    python3 scripts/end_to_end --output end-to-end.json
    python3 scripts/end_to_end --engine vllm --output end-to-end-vllm.json

Needs torch, the package `tilewright` (runtime/python), Transformers before 5.24 or vLLM 0.24, and a GPU for anything that counts. Weights are random and
made from the models' configurations: nothing is downloaded. The file is written again after every measurement, so a run that is cut off has what it did.
`python3 scripts/end_to_end/render.py` makes the table and the picture of it.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import flash_attn_3


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "end_to_end", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    say = parser.add_argument
    say("--engine", choices=("transformers", "vllm"), default="transformers", help="(default: %(default)s)")
    say("--output", type=Path, default=Path("end-to-end.json"), help="what was measured (default: %(default)s)")
    say("--append", action="store_true", help="keep what the file has: of the same device, engine and versions")
    say("--seconds", type=float, default=0, help="measure no longer than this; 0 for as long as it takes")
    say("--device", default="", help="cuda or cpu (default: cuda if there is one)")
    say("--models", default="llama-3-8b,qwen2.5-7b", help="(default: %(default)s)")
    say(
        "--small",
        action="store_true",
        help="two layers of the models, narrow, and short prompts: to try it without a GPU",
    )
    say(
        "--backends",
        default="",
        help="tilewright, flash_attention_3, and sdpa of Transformers or triton and flash_attention_3-cascade of vLLM; -eager behind the first two: "
        "without graphs (default: tilewright,flash_attention_3, through Transformers sdpa too)",
    )
    say(
        "--workloads",
        default="shared,trees,trace",
        help="(default: %(default)s); wide: 256 requests; apart: nothing shared",
    )
    say(
        "--parts",
        default="host,greedy,serve",
        help="what is done; through vLLM `host` is a batch more that is served, `wide` (default: %(default)s)",
    )
    say("--block-size", type=int, default=16, help="tokens of vLLM's pages (default: %(default)s)")
    say(
        "--kv-cache-dtype",
        choices=("auto", "fp8"),
        default="auto",
        help="element type of vLLM's K and V; auto: as the model's (default: %(default)s)",
    )
    say(
        "--runner",
        choices=("", "1", "2"),
        default="",
        help="vLLM's model runner (default: the one that it takes for the model)",
    )
    say("--requests", type=int, default=64, help="requests with the shared system prompt (default: %(default)s)")
    say("--prefix", type=int, default=8192, help="tokens of that prompt (default: %(default)s)")
    say(
        "--trees", type=int, default=2, help="how many of the catalogue's trees of PAT, figure 9 (default: %(default)s)"
    )
    say(
        "--trace",
        type=Path,
        help="JSON lines as published with Mooncake, .gz too; generated as the catalogue's scenario if absent",
    )
    say("--cache-gib", type=float, default=40, help="most of K and V that a workload may have (default: %(default)s)")
    say("--steps", type=int, default=32, help="decode steps that are timed (default: %(default)s)")
    say(
        "--rounds",
        type=int,
        default=1,
        help="through vLLM: how often a batch's steps are timed; of more than one, engines take turns where the GPU holds them all (default: %(default)s)",
    )
    say(
        "--flash-attn-3",
        type=Path,
        help="_vllm_fa3_C.abi3.so of a vLLM wheel, .xz or .zip too, if flash_attn_interface is not installed",
    )
    return parser.parse_args()


def main() -> int:
    args = arguments()
    began = time.perf_counter()
    problem = flash_attn_3.provide(args.flash_attn_3) if args.engine == "transformers" else ""
    args.backends = args.backends or "tilewright,flash_attention_3" + (",sdpa" if args.engine == "transformers" else "")

    import torch
    from clock import Clock
    from results import Results

    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    results = Results(args.output, device, args.engine, args.append)
    clock = Clock(began, args.seconds)
    if args.seconds:
        # A step that hangs, or is far slower than thought: what there is has been written.
        watchdog = threading.Timer(args.seconds + 20 - clock.spent(), lambda: (results.table(), os._exit(4)))
        watchdog.daemon = True
        watchdog.start()
    if args.engine == "vllm":
        guarded(results, "vLLM", lambda: __import__("vllm_engine").measure(results, args, device, clock))
    else:
        through_transformers(args, device, problem, results, clock)
    results.table()
    # Threads of an engine that failed may still wait.
    sys.stdout.flush()
    os._exit(0 if results.complete() else 3)


def through_transformers(args, device, no_flash: str, results, clock) -> None:
    from engine import backends

    chosen = backends(args.backends.split(","), device, no_flash, results)
    parts = args.parts.split(",")
    if "host" in parts:
        guarded(results, "host cost", lambda: __import__("host_cost").measure(results, device))
    if "greedy" in parts:
        guarded(
            results, "greedy tokens", lambda: __import__("greedy").measure(results, device, chosen, clock, args.small)
        )
    if "serve" in parts:
        guarded(results, "serving", lambda: __import__("serve").measure(results, device, chosen, clock, args))


def guarded(results, what: str, do) -> None:
    """The other parts are worth something without this one."""
    try:
        do()
    except Exception as error:
        traceback.print_exc()
        results.left_out(what, f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
