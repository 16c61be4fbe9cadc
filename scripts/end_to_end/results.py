"""What was measured, in one JSON file that is whole at any time."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path

from render import table


class Results:
    """Measurements as they come."""

    def __init__(self, path: Path, device, engine: str, append: bool = False) -> None:
        import torch

        self._path = path
        gpu = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
        self._data = {
            "device": gpu.name if gpu else f"cpu ({platform.machine()}, {torch.get_num_threads()} threads)",
            "engine": engine,
            "versions": {name: version(name) for name in ("torch", engine, "tilewright")},
            "host": [],
            "greedy": [],
            "serve": [],
            "left_out": [],
        }
        if append and path.exists():
            self._append_to(json.loads(path.read_text()))
        self._write()

    def _append_to(self, before: dict) -> None:
        for key in ("device", "engine", "versions"):
            if before[key] != self._data[key]:
                raise SystemExit(
                    f"error: {self._path} was measured with {key} {before[key]}, and this is {self._data[key]}: name another file"
                )
        self._data = before

    def add(self, part: str, record: dict) -> None:
        """Keeps a record of `host`, `greedy` or `serve`, and says it."""
        self._data[part].append(record)
        self._write()
        print(part, json.dumps(record), flush=True)

    def of(self, part: str) -> list[dict]:
        """What there is of a part."""
        return self._data[part]

    def left_out(self, what: str, why: str) -> None:
        """Notes what could not be measured."""
        self._data["left_out"].append({"what": what, "why": why[:1000]})
        self._write()
        print(f"left out: {what}: {why}", flush=True)

    def complete(self) -> bool:
        return not self._data["left_out"]

    def table(self) -> None:
        print("\n" + table(self._data), flush=True)

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        aside = self._path.with_suffix(".tmp")
        aside.write_text(json.dumps(self._data, indent=1) + "\n")
        os.replace(aside, self._path)
