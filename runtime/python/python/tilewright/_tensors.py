"""Tensors of any library as addresses, and what is wrong with them in words."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

Tensor: TypeAlias = Any
"""A torch tensor, a NumPy array, or an array with ``__array_interface__``, ``__cuda_array_interface__`` or ``__dlpack__``."""

Integers: TypeAlias = Any
"""A sequence of int, or an int32 tensor on the CPU."""


class View(NamedTuple):
    """Where a tensor lies. It borrows: ``owner`` has the memory."""

    name: str
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    dtype: str
    device: int | None
    """The GPU's number; None is the CPU."""
    writable: bool
    owner: Tensor

    @property
    def end(self) -> int:
        """One past its last byte; its address if it has no element."""
        return self.address + _extent(self.shape, self.strides) * ITEM_BYTES.get(self.dtype, 1)


# What is asked of shapes and strides is asked again in every layer and every step: it is remembered.


@lru_cache(maxsize=1024)
def _extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))


@lru_cache(maxsize=1024)
def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides without gaps."""
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= size
    return tuple(reversed(strides))


@lru_cache(maxsize=1024)
def _normal(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, where those of dimensions of one entry, which may be anything, are as if there were no gaps."""
    normal, below = list(strides), 1
    for axis in range(len(shape) - 1, -1, -1):
        if shape[axis] <= 1:
            normal[axis] = below
        below = max(below, normal[axis] * shape[axis])
    return tuple(normal)


ITEM_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
}

FP8 = {"float8_e4m3fn": "fp8", "float8_e5m2": "e5m2"}
"""Formats of FP8 that K and V may have, by their names in the native half."""

_TYPESTR = {
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
    "i2": "int16",
    "i4": "int32",
    "i8": "int64",
    "u1": "uint8",
    "u4": "uint32",
    "u8": "uint64",
}

_TORCH_DTYPES: dict[Any, str] = {}


def torch_of(tensor: Tensor) -> Any:
    """The module torch if the tensor is one of its own, else None. It is never imported here."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(tensor, getattr(torch, "Tensor", ())) else None


def device_name(device: int | None) -> str:
    return "the CPU" if device is None else f"cuda:{device}"


def dtype_name(dtype: Any) -> str:
    """The name of a torch or NumPy dtype, or of a text: ``float16``, ``bfloat16``, ``float32``, ``float8_e4m3fn``, ``float8_e5m2``."""
    if isinstance(dtype, str):
        name = dtype
    elif isinstance(dtype, type):  # numpy.float32, ml_dtypes.bfloat16
        name = dtype.__name__
    else:
        name = str(getattr(dtype, "name", dtype))
    return name.removeprefix("torch.")


def view(name: str, tensor: Tensor) -> View:
    """Where a tensor lies.

    Raises:
        TypeError: it is no tensor.
        ValueError: it has no memory of its own, or needs gradients.
    """
    torch = torch_of(tensor)
    if torch is not None:
        return _view_of_torch(name, tensor, torch)
    on_gpu = getattr(tensor, "__cuda_array_interface__", None)
    if on_gpu is not None:
        number = getattr(getattr(tensor, "device", None), "id", 0)
        return _view_of_interface(name, tensor, on_gpu, number)
    on_host = getattr(tensor, "__array_interface__", None)
    if on_host is not None:
        return _view_of_interface(name, tensor, on_host, None)
    if hasattr(tensor, "__dlpack__"):
        import numpy as np

        try:
            array_of_numpy = np.from_dlpack(tensor)
        except (BufferError, RuntimeError, TypeError) as error:
            raise ValueError(f"`{name}` cannot be seen as a NumPy array: {error}") from error
        return _view_of_interface(name, array_of_numpy, array_of_numpy.__array_interface__, None)
    raise TypeError(
        f"`{name}` is a {type(tensor).__name__}: give a torch tensor, a NumPy array, or an array with `__array_interface__`, "
        "`__cuda_array_interface__` or `__dlpack__`"
    )


def _view_of_torch(name: str, tensor: Tensor, torch: Any) -> View:
    dtype = tensor.dtype
    known = _TORCH_DTYPES.get(dtype)
    if known is None:
        known = _TORCH_DTYPES.setdefault(dtype, dtype_name(dtype))
    if tensor.is_cpu:
        number = None
    elif tensor.is_cuda:
        number = tensor.get_device()
    else:
        raise ValueError(f"`{name}` is on the device {tensor.device}: only `cpu` and `cuda` tensors can be used")
    if tensor.layout is not torch.strided:
        raise ValueError(f"`{name}` has the layout {tensor.layout}: make it dense by `.to_dense()`")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"`{name}` needs gradients, which decode attention does not compute: call it under `torch.no_grad()`"
        )
    return View(name, tensor.data_ptr(), tensor.shape, tensor.stride(), known, number, True, tensor)


def _view_of_interface(name: str, tensor: Tensor, interface: dict[str, Any], device: int | None) -> View:
    typestr: str = interface["typestr"]
    if typestr[0] == ">":
        raise ValueError(f"`{name}` is big-endian: only the processor's own byte order can be used")
    dtype = _TYPESTR.get(typestr[1:]) or dtype_name(getattr(tensor, "dtype", typestr))
    size = int(typestr[2:])
    data = interface.get("data")
    if not isinstance(data, tuple):
        raise TypeError(f"`{name}` is a {type(tensor).__name__}, which gives no address: make a NumPy array of it")
    address, readonly = data
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    if strides is None:
        return View(name, address, shape, dense(shape), dtype, device, not readonly, tensor)
    if any(stride % size for stride in strides):
        raise ValueError(
            f"`{name}` has strides of {list(strides)} bytes, which are no whole elements of {size}: copy it"
        )
    return View(name, address, shape, tuple(stride // size for stride in strides), dtype, device, not readonly, tensor)


def check(
    view: View, dtype: str, device: int | None, shape: Sequence[int | None], what: str, others: Sequence[str] = ()
) -> None:
    """Refuses another dtype, device or shape; None is any size.

    Raises:
        ValueError: what is wrong, and what is needed.
    """
    if view.dtype == dtype and view.device == device and view.shape == shape:
        return
    name = view.name
    if view.dtype != dtype and view.dtype not in others:
        raise ValueError(f"`{name}` is {view.dtype}, {dtype} is needed")
    if view.device != device:
        raise ValueError(f"`{name}` is on {device_name(view.device)}, the attention on {device_name(device)}")
    if len(view.shape) != len(shape) or any(want is not None and want != has for has, want in zip(view.shape, shape)):
        needed = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"`{name}` has the shape {list(view.shape)}, [{needed}] is needed: {what}")


def rows(view: View) -> tuple[int, int, int]:
    """Address and strides of ``[batch, heads, dim]``.

    Raises:
        ValueError: the elements of a head are no neighbours, or strides are negative.
    """
    query, head = normal_strides(view)[:2]
    return view.address, query, head


def normal_strides(view: View) -> tuple[int, ...]:
    """Strides, where those of dimensions of one entry, which may be anything, are as if there were no gaps.

    Raises:
        ValueError: the last one is not 1, or one is negative.
    """
    strides = _normal(view.shape, view.strides)
    if strides[-1] != 1:
        raise ValueError(
            f"`{view.name}` has the strides {list(view.strides)}: the elements of a head must be neighbours, with a last stride of 1; "
            "copy it (`.contiguous()` of torch, `numpy.ascontiguousarray`)"
        )
    if min(strides) < 0:
        raise ValueError(f"`{view.name}` has the strides {list(view.strides)}: none may be negative; copy it")
    return strides


@lru_cache(maxsize=1024)
def _is_apart(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether no two elements of `[batch, heads, dim]` lie in one place, by the strides alone: one dimension inside of the other."""
    needed = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape) if size > 1):
        if stride < needed:
            return False
        needed = stride * size
    return True


def check_apart(view: View) -> None:
    """Refuses to write two rows to one place.

    Raises:
        ValueError: rows overlap.
    """
    if not _is_apart(view.shape, view.strides):
        raise ValueError(
            f"`{view.name}` has the strides {list(view.strides)}: its rows overlap; write to a tensor of its own"
        )


def check_dense(view: View) -> None:
    """Refuses gaps.

    Raises:
        ValueError: there are some.
    """
    needed = dense(view.shape)
    if view.strides == needed:
        return
    gaps = any(size > 1 and has != need for size, has, need in zip(view.shape, view.strides, needed))
    if gaps and 0 not in view.shape:
        raise ValueError(
            f"`{view.name}` has the strides {list(view.strides)}, {list(needed)} are needed: copy it, so that it has no gaps"
        )


def check_written(view: View, read: Sequence[View]) -> None:
    """Refuses memory that cannot be written, or that is read too.

    Raises:
        ValueError: which of the two.
    """
    if not view.writable:
        raise ValueError(f"`{view.name}` is read-only")
    begin, end = view.address, view.end
    for other in read:
        if begin < other.end and other.address < end:
            raise ValueError(f"`{view.name}` overlaps `{other.name}`: write to other memory")


class I32(NamedTuple):
    """An array of i32 on the CPU; ``owner`` has the memory."""

    address: int
    length: int
    shape: tuple[int, ...]
    owner: Any
    stride: int
    """Elements from row to row, of two axes."""

    @property
    def array(self) -> tuple[int, int]:
        return self.address, self.length


def int32s(name: str, values: Integers, axes: int = 1) -> I32:
    """Whole numbers as an array of i32, without a copy if they are one. Of two axes, there may be gaps between rows.

    Raises:
        TypeError: no whole numbers.
        ValueError: another dtype, device or number of axes, gaps, or numbers beyond 32 bits.
    """
    if isinstance(values, (list, tuple, range)):
        return _int32s_of_sequence(name, values, axes)
    seen = view(name, values)
    if seen.device is not None:
        raise ValueError(
            f"`{name}` is on {device_name(seen.device)}: plans are made on the host, so give the CPU copy that the engine has "
            "(`.cpu()` would wait for the device)"
        )
    if seen.dtype != "int32":
        raise ValueError(f"`{name}` is {seen.dtype}, int32 is needed")
    if len(seen.shape) != axes:
        raise ValueError(f"`{name}` has the shape {list(seen.shape)}, {axes} axes are needed")
    if axes == 2 and (seen.strides[1] == 1 or seen.shape[1] <= 1) and seen.strides[0] >= seen.shape[1]:
        stride = seen.strides[0]
    else:
        check_dense(seen)
        stride = seen.shape[-1]
    return I32(seen.address, math.prod(seen.shape), seen.shape, seen.owner, stride)


def _int32s_of_sequence(name: str, values: Sequence[Any], axes: int) -> I32:
    shape: tuple[int, ...] = (len(values),)
    if axes == 2:
        columns = len(values[0]) if values else 0
        if any(len(row) != columns for row in values):
            raise ValueError(f"`{name}` has rows of several lengths: fill them up with -1")
        shape, values = (len(values), columns), [value for row in values for value in row]
    try:
        numbers = array("i", values)
    except OverflowError as error:
        raise ValueError(f"`{name}` has numbers beyond 32 bits") from error
    except TypeError as error:
        raise TypeError(f"`{name}` has entries that are no whole numbers: {error}") from error
    address, length = numbers.buffer_info()
    return I32(address, length, shape, numbers, shape[-1])


def counts(name: str, values: Integers) -> list[int]:
    """Whole numbers from 0 on as a list.

    Raises:
        TypeError: no whole numbers.
        ValueError: a negative number, or a tensor on a GPU.
    """
    numbers = integers(name, values)
    if any(number < 0 for number in numbers):
        raise ValueError(f"`{name}` has the number {min(numbers)}: none may be negative")
    return numbers


def integers(name: str, values: Integers) -> list[int]:
    """Whole numbers of 32 bits as a list.

    Raises:
        TypeError: no whole numbers.
        ValueError: numbers beyond 32 bits, or a tensor on a GPU.
    """
    if not isinstance(values, (list, tuple, range)):
        seen = view(name, values)
        if seen.device is not None:
            raise ValueError(
                f"`{name}` is on {device_name(seen.device)}: plans are made on the host, so give a list or a CPU tensor"
            )
        values = seen.owner.tolist()
    return list(_int32s_of_sequence(name, values, 1).owner)
