"""The archive of compiled kernels that a wheel has, and those that are none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tilewright
from tilewright import Attention, Heads, _cubins, _native

HEADS = Heads(8, 2, 64)


def test_the_wheel_has_its_kernels():
    # scripts/test-python builds a wheel of one kernel.
    path = _cubins.packaged()
    assert path == str(Path(tilewright.__file__).with_name("cubins.bin"))
    (major, _), archs = _native.compiled_kernels(path)
    assert major >= 12 and archs == [("sm_90a", 1)]
    assert _cubins.archive_of(None, on_gpu=True) == path
    assert _cubins.archive_of(None, on_gpu=False) is None
    assert _cubins.archive_of(Path("other"), on_gpu=False) == "other"


def test_the_users_setting_goes_before_the_package(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CUBINS", "/some/file")
    assert _cubins.archive_of(None, on_gpu=True) is None


def test_a_file_that_is_none_is_refused_with_the_reason(tmp_path):
    path = tmp_path / "cubins.bin"
    with pytest.raises(ValueError, match=r"cannot read .*cubins\.bin"):
        Attention(HEADS, 16, dtype="float32", cubins=path)
    whole = Path(_cubins.PACKAGED).read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="was not written or copied whole"):
        Attention(HEADS, 16, dtype="float32", cubins=path)
    path.write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="is no archive of compiled kernels"):
        Attention(HEADS, 16, dtype="float32", cubins=os.fspath(path))


def test_a_damaged_archive_of_the_package_is_warned_of_once(tmp_path):
    program = """
import logging
logging.basicConfig(level=logging.WARNING)
from pathlib import Path
from tilewright import _cubins
_cubins.PACKAGED = Path(r"{path}")
print([_cubins.archive_of(None, on_gpu=True) for _ in range(2)])
"""
    path = tmp_path / "damaged.bin"
    path.write_bytes(_cubins.PACKAGED.read_bytes()[:100])
    done = subprocess.run([sys.executable, "-c", program.format(path=path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[None, None]\n"
    assert done.stderr.count("damaged.bin has 100 bytes") == done.stderr.count("kernels are compiled") == 1
