"""Loops in C (`native.c`) for rows and their first values, with the results of torch's operations except for rounding.

The library is part of the package if there was a C compiler when it was built; see `hatch_build.py`. Callers check
`is_native` for their tensors, and otherwise use torch.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LIBRARY = Path(__file__).with_name("libnative.so")
GROUP = 16
"""The normal numbers that are made together."""
_ROWS_OF_A_THREAD = 4096
"""The fewest rows for which another thread is worth its start, about 50 µs."""
_TYPES = {torch.float32: (ctypes.c_float, "float"), torch.float64: (ctypes.c_double, "double")}


def is_available() -> bool:
    """True if the package was built with a C compiler."""
    return _library is not None


def is_native(*tensors: Tensor) -> bool:
    """True if there are loops for these tensors: contiguous, on the CPU, of one precision of 32 or 64 bits."""
    kind = tensors[0].dtype
    suits = (one.dtype == kind and one.device.type == "cpu" and one.is_contiguous() for one in tensors)
    return is_available() and kind in _TYPES and all(suits)


def are_row_numbers(*tensors: Tensor) -> bool:
    """True if the loops can read these row numbers."""
    return all(one.dtype == torch.int64 and one.device.type == "cpu" and one.is_contiguous() for one in tensors)


def mean_rows(rows: Sequence[Tensor], values: Sequence[Tensor], divisor: int) -> tuple[Tensor, Tensor]:
    """The distinct row numbers [d] of all `rows`, ascending, and the sums of their values [d, dim] over `divisor`.

    Each of `rows` [n] ascends, without duplicates, and belongs to the `values` [n, dim] of the same index. Raises
    `ValueError` for other shapes.
    """
    dim, total = values[0].shape[1], sum(map(len, rows))
    for numbers, found in zip(rows, values, strict=True):
        _require_shape("values", found, (len(numbers), dim))
    merged_rows, merged = rows[0].new_empty(total), values[0].new_empty(total, dim)
    number, name = _TYPES[merged.dtype]
    sizes = ctypes.c_int64 * len(rows)
    count = _loop(f"mean_rows_{name}")(
        ctypes.c_int64(len(rows)),
        _pointers(rows),
        _pointers(values),
        sizes(*map(len, rows)),
        sizes(),  # The next row of each, which the loop advances.
        ctypes.c_int64(dim),
        number(divisor),
        _pointer(merged_rows),
        _pointer(merged),
    )
    return merged_rows[:count], merged[:count]


def step_adagrad(  # noqa: PLR0917 - in the order of the loop's arguments
    rows: Tensor, gradients: Tensor, weight: Tensor, squares: Tensor, rate: float, eps: float
) -> None:
    """A step on the ascending `rows` [n] of `weight` [m, dim] and of the sums of squares, with gradients [n, dim].

    Uses up to `torch.get_num_threads()` threads, with equal results: no row occurs twice.

    Raises `IndexError` if `weight` does not have all the rows, and `ValueError` for other shapes.
    """
    _require_shape("gradients", gradients, (len(rows), weight.shape[1]))
    _require_shape("squares", squares, tuple(weight.shape))
    if len(rows) == 0:
        return
    if int(rows[0]) < 0 or int(rows[-1]) >= len(weight):
        raise IndexError(f"rows {int(rows[0])} to {int(rows[-1])} have gradients; the weight has {len(weight)} rows")
    number, name = _TYPES[weight.dtype]

    def step(begin: int, end: int) -> None:
        _loop(f"step_adagrad_{name}")(
            ctypes.c_int64(end - begin),
            _pointer(rows[begin:end]),
            _pointer(gradients[begin:end]),
            ctypes.c_int64(gradients.shape[1]),
            _pointer(weight),
            _pointer(squares),
            number(rate),
            number(eps),
        )

    _in_threads(step, len(rows))
    torch.autograd.graph.increment_version((weight, squares))  # As operations in place do, which autograd checks.


def standard_normal(values: Tensor, seed: int) -> None:
    """Fill float64 `values`, at least 16, as torch's `normal_` does after `manual_seed(seed)`.

    The values are the same on every processor. Raises `ValueError` for fewer values, or others than float64.
    """
    if values.numel() < GROUP or values.dtype != torch.float64:
        kind = str(values.dtype).removeprefix("torch.")
        raise ValueError(f"the loop fills at least {GROUP} values of float64, not {values.numel()} of {kind}")
    seed_of_twister = ctypes.c_uint32(seed & 0xFFFFFFFF)  # Torch's generator drops the upper bits, too.
    _loop("standard_normal_double")(seed_of_twister, ctypes.c_int64(values.numel()), _pointer(values))
    torch.autograd.graph.increment_version(values)


def load(path: Path) -> None:
    """Use the library at `path` if it exists, else none."""
    global _library  # noqa: PLW0603 - a process has one
    _library = ctypes.CDLL(os.fspath(path)) if path.exists() else None


def _in_threads(work: Callable[[int, int], None], count: int) -> None:
    """Call `work(begin, end)` for consecutive parts of `range(count)`, in several threads if there is enough to do."""
    parts = max(1, min(torch.get_num_threads(), count // _ROWS_OF_A_THREAD))
    (begin, end), *others = pairwise(count * part // parts for part in range(parts + 1))
    futures = [_threads.submit(work, *other) for other in others]
    work(begin, end)
    for future in futures:
        future.result()


def _require_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise ValueError(f"the {name} have the shape {list(tensor.shape)}; it must be {list(shape)}")


def _loop(name: str) -> Any:
    loop = getattr(_library, name)
    loop.restype = ctypes.c_int64  # Of loops that return nothing, nobody reads it.
    return loop


def _pointer(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _pointers(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(one.data_ptr() for one in tensors))


_threads = ThreadPoolExecutor(thread_name_prefix="rows")
"""Its threads start when they are needed first, and never before a process forks."""
_library: ctypes.CDLL | None = None
load(LIBRARY)
