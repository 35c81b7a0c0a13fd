"""The compiled loops of this package, and how they get tensors."""

import ctypes
import logging
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rolecall.logs import about

_LOG = logging.getLogger(__name__)
LIBRARY = Path(__file__).with_name("libnative.so")
_TYPES = {torch.float32: (ctypes.c_float, "float"), torch.float64: (ctypes.c_double, "double")}


def is_available() -> bool:
    """True if the package was built with a C compiler."""
    return _library is not None


def is_native(*tensors: Tensor) -> bool:
    """True if there are loops for these tensors: contiguous, on the CPU, of one precision of 32 or 64 bits.

    Logs once if there are none only because the package was built without a C compiler.
    """
    kind = tensors[0].dtype
    suits = (one.dtype == kind and one.device.type == "cpu" and one.is_contiguous() for one in tensors)
    if kind not in _TYPES or not all(suits):
        return False
    if not is_available():
        _log_missing()
    return is_available()


def are_integers(*tensors: Tensor) -> bool:
    """True if the loops can read these row numbers or choices."""
    return all(one.dtype == torch.int64 and one.device.type == "cpu" and one.is_contiguous() for one in tensors)


def are_flags(*tensors: Tensor) -> bool:
    """True if the loops can read these booleans."""
    return all(one.dtype == torch.bool and one.device.type == "cpu" and one.is_contiguous() for one in tensors)


def loop(name: str, tensor: Tensor | None = None) -> Any:
    """The function of the library with this name; with a tensor, the one for its precision."""
    found = getattr(_library, name if tensor is None else f"{name}_{_TYPES[tensor.dtype][1]}")
    found.restype = ctypes.c_int64  # Of loops that return nothing, nobody reads it.
    return found


def number_type(tensor: Tensor) -> Any:
    """The C type of the tensor's numbers."""
    return _TYPES[tensor.dtype][0]


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def pointers(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(one.data_ptr() for one in tensors))


def require_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raises `ValueError` if the tensor `name` has another shape, because loops don't check their memory."""
    if tensor.shape != shape:
        raise ValueError(f"the {name} have the shape {list(tensor.shape)}; it must be {list(shape)}")


def load(path: Path) -> None:
    """Use the library at `path` if it exists, else none."""
    global _library  # noqa: PLW0603 - a process has one
    _library = ctypes.CDLL(os.fspath(path)) if path.exists() else None
    _log_missing.cache_clear()


@cache
def _log_missing() -> None:
    text = "the package was built without a C compiler: torch updates rows and policies, which takes longer"
    _LOG.warning(text, extra=about("native_missing"))


_library: ctypes.CDLL | None = None
load(LIBRARY)
