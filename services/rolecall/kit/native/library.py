"""The compiled loops of this package, and how they get tensors."""

import ctypes
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rolecall.edge.logs import about

_LOG = logging.getLogger(__name__)
LIBRARY = Path(__file__).with_name("libnative.so")
_TYPES = {torch.float32: (ctypes.c_float, "float"), torch.float64: (ctypes.c_double, "double")}


def is_available() -> bool:
    """True if the package was built with a C compiler."""
    return _library is not None


def is_native(*tensors: Tensor) -> bool:
    """True if there are loops for these tensors: contiguous, on the CPU, of one precision of 32 or 64 bits."""
    kind = tensors[0].dtype
    suits = (one.dtype == kind and one.device.type == "cpu" and one.is_contiguous() for one in tensors)
    return is_available() and kind in _TYPES and all(suits)


def are_integers(*tensors: Tensor) -> bool:
    """True if the loops can read these row numbers or choices."""
    return all(one.dtype == torch.int64 and one.device.type == "cpu" and one.is_contiguous() for one in tensors)


def warn_if_missing(device: torch.device, work: str) -> None:
    """Log that torch does the `work`, such as "updates the rows", if it is on the CPU and there are no loops."""
    if not is_available() and device.type == "cpu":
        text = "the package was built without a C compiler: torch %s, which takes longer"
        _LOG.warning(text, work, extra=about("native_missing"))


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


_library: ctypes.CDLL | None = None
load(LIBRARY)
