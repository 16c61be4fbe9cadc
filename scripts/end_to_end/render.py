"""The table and the picture of what `scripts/end_to_end` has measured.

python3 scripts/end_to_end/render.py end-to-end.json --picture docs/end-to-end.svg > table.md
"""

from __future__ import annotations

import argparse
import json
from html import escape
from pathlib import Path
from statistics import median

COLORS = {"tilewright": "#1f77b4", "flash_attention_3": "#ff7f0e", "sdpa": "#7f7f7f"}


def table(data: dict) -> str:
    """All results as Markdown."""
    out = [f"{data['device']}; " + ", ".join(f"{name} {version}" for name, version in data["versions"].items()), ""]
    if data["serve"]:
        out += [
            "| model | batch | attention | ms a step | tokens/s | GPU ms a step | attention ms | share |",
            "|---|---|---|--:|--:|--:|--:|--:|",
        ]
        for run in data["serve"]:
            gpu = run.get("gpu_ms")
            of_gpu = "| | | |"
            if gpu:
                of_gpu = f"| {gpu:.2f} | {run['attention_ms']:.2f} | {100 * run['attention_ms'] / gpu:.0f} % |"
            out.append(
                f"| {run['model']} | {run['workload']} | {run['backend']} | {run['step_ms']:.2f} | {run['tokens_per_s']:.0f} {of_gpu}"
            )
        out.append("")
    beside = _beside(data["serve"])
    if beside:
        out += [
            "| model | batch | step of tilewright beside | median | least | most | rounds | spread of rounds |",
            "|---|---|---|--:|--:|--:|--:|--:|",
            *beside,
            "",
        ]
    planned = [run for run in data["serve"] if run.get("build_us")]
    if planned:
        out += [
            "| model | batch | requests | attention | metadata of a step on the host, us: the backend's `build` | native half | all that vLLM does |",
            "|---|---|--:|---|--:|--:|--:|",
        ]
        for run in planned:
            host = (run.get(name) for name in ("build_us", "native_us", "metadata_us"))
            of_host = " | ".join("" if took is None else f"{took:.0f}" for took in host)
            out.append(f"| {run['model']} | {run['workload']} | {run['requests']} | {run['backend']} | {of_host} |")
        out.append("")
    if data["greedy"]:
        out += [
            "| attention | prompts x tokens | equal answers | parted by rounding | wrong | largest gap of logits | beyond twice bf16's error | that error, most |",
            "|---|---|--:|--:|--:|--:|--:|--:|",
        ]
        for run in data["greedy"]:
            out.append(
                f"| {run['backend']} beside {run['against']} | {run['prompts']} x {run['tokens_each']} | {run['equal_answers']} "
                f"| {run['parted_by_rounding']} | {run['wrong']} | {run['largest_gap']:.4f} | {run['beyond_bf16']} | {run['largest_bf16_error']:.4f} |"
            )
        out.append("")
    counted = [run for run in data["greedy"] if run.get("gap_units")]
    if counted:
        out += [
            "| attention | the two best logits where answers part first: of answers | none apart | at most 1 bf16 unit | 2 units | 3 units | most |",
            "|---|---|--:|--:|--:|--:|--:|",
        ]
        for run in counted:
            pairs = ((run["backend"], "gap_units"), (run["against"], "against_gap_units"))
            for name, units in ((name, run[key]) for name, key in pairs):
                out.append(
                    f"| {run['backend']} beside {run['against']} | {name}, {len(units)} | "
                    + " | ".join(str(_within(units, most)) for most in range(4))
                    + f" | {max(units):.1f} |"
                )
        out.append("")
    for run in data["host"]:
        out += [f"| host, {run['requests']} requests, {run['page_entries']} page entries | us |", "|---|--:|"]
        out += [f"| {name.removesuffix('_us')} | {run[name]:.0f} |" for name in run if name.endswith("_us")]
        out.append("")
    if data["left_out"]:
        out += ["Left out:", ""] + [f"- {item['what']}: {item['why']}" for item in data["left_out"]]
    return "\n".join(out).rstrip() + "\n"


def _beside(runs: list[dict]) -> list[str]:
    """How long our step takes beside that of each other backend, in rounds that took turns."""
    of_rounds = [run for run in runs if run.get("took_turns") and len(run["round_ms"]) > 1]
    ours = {(run["model"], run["workload"]): run for run in of_rounds if run["backend"] == "tilewright"}
    lines = []
    for run in of_rounds:
        mine = ours.get((run["model"], run["workload"]))
        if mine is None or run["backend"] == "tilewright":
            continue
        ratios = [a / b for a, b in zip(mine["round_ms"], run["round_ms"])]
        spread = " and ".join(f"{_spread(one['round_ms']):.1f} %" for one in (mine, run))
        lines.append(
            f"| {run['model']} | {run['workload']} | {run['backend']} | {median(ratios):.3f} | {min(ratios):.3f} | {max(ratios):.3f} | {len(ratios)} | {spread} |"
        )
    return lines


def _spread(times: list[float]) -> float:
    """Percent of the median between the least and the most."""
    return 100 * (max(times) - min(times)) / median(times)


def _within(units: list[float], most: int) -> int:
    # Logarithms of probabilities are f32: a unit is not met to the last digit.
    return sum(gap <= most + 0.05 for gap in units)


def picture(data: dict) -> str:
    """Milliseconds of a step: a bar a run, attention's part of it dark."""
    runs = data["serve"]
    height, left, width, top = 18, 380, 380, 46
    longest = max((run["step_ms"] for run in runs), default=1.0)
    shown = [run for run in runs if run["step_ms"] <= 4 * sorted(r["step_ms"] for r in runs)[len(runs) // 2]] or runs
    longest = max((run["step_ms"] for run in shown), default=1.0)
    out, y, before = [], top, None
    for run in runs:
        group = (run["model"], run["workload"])
        if group != before:
            y += 10
            label = f"{run['model']}: {run['workload']}"
            out.append(f'<text x="8" y="{y + 13}">{escape(label)}</text>')
            before = group
            y += 20
        color = COLORS.get(run["backend"], "#2ca02c")
        cut = run["step_ms"] > longest
        bar = width * min(run["step_ms"], longest) / longest
        out.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{escape(run["backend"])}</text>')
        out.append(
            f'<rect x="{left}" y="{y + 2}" width="{bar:.1f}" height="{height - 4}" fill="{color}" opacity="0.45"/>'
        )
        if run.get("attention_ms"):
            part = min(bar, width * run["attention_ms"] / longest)
            out.append(f'<rect x="{left}" y="{y + 2}" width="{part:.1f}" height="{height - 4}" fill="{color}"/>')
        out.append(
            f'<text x="{left + bar + 6:.1f}" y="{y + 13}">{run["step_ms"]:.1f} ms{" (cut)" if cut else ""}</text>'
        )
        y += height
    engine = "vLLM" if data.get("engine") == "vllm" else "Transformers' continuous batching"
    head = f"{data['device']}: a decode step through {engine}; dark: attention"
    style = (
        "<style>text{font:12px sans-serif;fill:#222}rect.page{fill:#fff}"
        "@media (prefers-color-scheme:dark){text{fill:#ddd}rect.page{fill:#111}}</style>"
    )
    total = left + width + 110
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {y + 16}" width="{total}">{style}'
        f'<rect class="page" width="100%" height="100%"/><text x="8" y="24" font-weight="bold">{escape(head)}</text>'
        + "".join(out)
        + "</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        "render", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measured", type=Path, help="what scripts/end_to_end wrote")
    parser.add_argument("--picture", type=Path, help="an SVG file to write")
    args = parser.parse_args()
    data = json.loads(args.measured.read_text())
    if args.picture:
        if not data["serve"]:
            raise SystemExit("error: nothing was served, there is nothing to draw")
        args.picture.write_text(picture(data))
    print(table(data), end="")


if __name__ == "__main__":
    main()
