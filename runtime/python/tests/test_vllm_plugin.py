"""vLLM's plug-in as far as vLLM is not needed; `tests_vllm` has the rest."""

import ast
import enum
import sys
import types
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import tilewright
import tilewright.vllm


def test_the_entry_point_registers_a_class_that_there_is(monkeypatch):
    (entry,) = entry_points(group="vllm.general_plugins", name="tilewright")
    assert entry.load() is tilewright.vllm.register
    calls = []
    registry = types.ModuleType("vllm.v1.attention.backends.registry")
    registry.AttentionBackendEnum = enum.Enum("AttentionBackendEnum", {"CUSTOM": None})
    registry.register_backend = lambda *given: calls.append(given)
    for name in ("vllm", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, registry.__name__, registry)
    tilewright.vllm.register()
    ((backend, path),) = calls
    module, name = path.rsplit(".", 1)
    source = Path(tilewright.__file__).parent / (module.removeprefix("tilewright.") + ".py")
    classes = {node.name for node in ast.parse(source.read_text()).body if isinstance(node, ast.ClassDef)}
    assert backend is registry.AttentionBackendEnum.CUSTOM and module.startswith("tilewright.") and name in classes


def test_without_vllm_it_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError, match="vllm"):
        tilewright.vllm.register()
