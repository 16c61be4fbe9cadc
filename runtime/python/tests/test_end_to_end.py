"""The table and the picture of `scripts/end_to_end`, from records as it writes them."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "end_to_end" / "render.py"


def rendered(folder, data):
    measured, picture = folder / "measured.json", folder / "picture.svg"
    measured.write_text(json.dumps(data))
    command = [sys.executable, str(SCRIPT), str(measured), "--picture", str(picture)]
    return subprocess.run(command, capture_output=True, text=True), picture


def test_each_record_has_its_line_and_its_bar(tmp_path):
    run = {"model": "m <8b>", "workload": "tree 1,8_2,3", "requests": 8, "tokens_per_s": 4000.0}
    timed = {"gpu_ms": 1.6, "attention_ms": 0.4}
    data = {
        "device": "a GPU",
        "versions": {"torch": "2.11"},
        "serve": [
            {
                **run,
                "backend": "tilewright",
                "step_ms": 2.0,
                **timed,
                "build_us": 41.2,
                "native_us": 30.0,
                "metadata_us": 170.3,
            },
            {**run, "backend": "sdpa", "step_ms": 90.0},
            {
                **run,
                "backend": "flash_attention_3",
                "step_ms": 3.0,
                **timed,
                "build_us": 90.0,
                "native_us": None,
                "metadata_us": None,
            },
        ],
        "greedy": [
            {"backend": "tilewright", "against": "sdpa", "prompts": 64, "tokens_each": 128, "equal_answers": 60}
            | {"parted_by_rounding": 4, "wrong": 0, "largest_gap": 0.01, "beyond_bf16": 1, "largest_bf16_error": 0.002}
            | {"gap_units": [0.0, 1.0, 1.999, 3.0], "against_gap_units": [0.0, 0.5, 1.0, 1.0]}
        ],
        "host": [{"requests": 256, "page_entries": 9, "plan_us": 41.6}],
        "left_out": [{"what": "qwen", "why": "the time is over"}],
    }
    done, picture = rendered(tmp_path, data)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "| m <8b> | tree 1,8_2,3 | tilewright | 2.00 | 4000 | 1.60 | 0.40 | 25 % |" in lines
    assert "| m <8b> | tree 1,8_2,3 | sdpa | 90.00 | 4000 | | | |" in lines
    assert "| tilewright beside sdpa | 64 x 128 | 60 | 4 | 0 | 0.0100 | 1 | 0.0020 |" in lines
    two_best = "| tilewright beside sdpa |"
    assert (
        f"{two_best} tilewright, 4 | 1 | 2 | 3 | 4 | 3.0 |" in lines
        and f"{two_best} sdpa, 4 | 1 | 4 | 4 | 4 | 1.0 |" in lines
    )
    assert "| m <8b> | tree 1,8_2,3 | 8 | tilewright | 41 | 30 | 170 |" in lines
    assert "| m <8b> | tree 1,8_2,3 | 8 | flash_attention_3 | 90 |  |  |" in lines
    assert "| plan | 42 |" in lines and "- qwen: the time is over" in lines
    root = ElementTree.parse(picture).getroot()
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "m <8b>: tree 1,8_2,3" in texts and "2.0 ms" in texts
    assert "90.0 ms (cut)" in texts, "a bar far longer than the others is cut"
    bars = [
        float(bar.get("width")) for bar in root.iter("{http://www.w3.org/2000/svg}rect") if bar.get("class") is None
    ]
    assert len(bars) == 5, "three steps, and attention's part of two"


def test_rounds_that_took_turns_are_compared_one_by_one(tmp_path):
    run = {"model": "m", "workload": "apart", "requests": 8, "tokens_per_s": 1.0, "took_turns": True}
    alone = {**run, "workload": "alone", "took_turns": False}
    data = {
        "device": "a GPU",
        "versions": {},
        "serve": [
            {**run, "backend": "tilewright", "step_ms": 2.0, "round_ms": [2.0, 1.0, 4.0]},
            {**run, "backend": "flash_attention_3", "step_ms": 2.0, "round_ms": [2.0, 2.0, 2.0]},
            # Of engines that were not there at the same time, and of one round, nothing is said.
            {**alone, "backend": "tilewright", "step_ms": 2.0, "round_ms": [2.0, 2.0]},
            {**alone, "backend": "flash_attention_3", "step_ms": 2.0, "round_ms": [2.0, 2.0]},
            {**run, "workload": "once", "backend": "tilewright", "step_ms": 2.0, "round_ms": [2.0]},
            {**run, "workload": "once", "backend": "flash_attention_3", "step_ms": 2.0, "round_ms": [2.0]},
        ],
        "greedy": [],
        "host": [],
        "left_out": [],
    }
    done, _ = rendered(tmp_path, data)
    assert done.returncode == 0, done.stderr
    begin = done.stdout.index("| model | batch | step of tilewright beside |")
    _, _, *lines = done.stdout[begin:].split("\n\n")[0].splitlines()
    assert lines == ["| m | apart | flash_attention_3 | 1.000 | 0.500 | 2.000 | 3 | 150.0 % and 0.0 % |"]


def test_nothing_is_drawn_of_nothing(tmp_path):
    data = {"device": "d", "versions": {}, "serve": [], "greedy": [], "host": [], "left_out": []}
    done, picture = rendered(tmp_path, data)
    assert done.returncode == 1 and "nothing was served" in done.stderr and not picture.exists()
