"""Compiled kernels that come with the package."""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path

from . import _native

PACKAGED = Path(__file__).with_name("cubins.bin")


def archive_of(cubins: str | os.PathLike[str] | None, *, on_gpu: bool) -> str | None:
    """The file to take kernels from: the caller's, or the package's own unless the user has set another."""
    if cubins is not None:
        return os.fspath(cubins)
    if not on_gpu or os.environ.get("TILEWRIGHT_CUBINS"):
        return None
    return packaged()


@functools.cache
def packaged() -> str | None:
    """The package's own, if it was built with one."""
    if not PACKAGED.is_file():
        return None
    try:
        _native.compiled_kernels(str(PACKAGED))
    except ValueError as error:
        logging.getLogger("tilewright").warning("%s; kernels are compiled", error)
        return None
    return str(PACKAGED)
