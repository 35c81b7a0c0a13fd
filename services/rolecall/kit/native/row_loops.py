"""Loops over rows and their first values (`row_loops.c`). The results are those of torch except for rounding."""

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import torch
from torch import Tensor

from rolecall.kit.native.library import loop, number_type, pointer, pointers, require_shape

GROUP = 16
"""The normal numbers that are made together."""
_ROWS_OF_A_THREAD = 4096
"""The fewest rows for which another thread is worth its start, about 50 µs."""


def mean_rows(rows: Sequence[Tensor], values: Sequence[Tensor], divisor: int) -> tuple[Tensor, Tensor]:
    """The distinct row numbers [d] of all `rows`, ascending, and the sums of their values [d, dim] over `divisor`.

    Each of `rows` [n] ascends, without duplicates, and belongs to the `values` [n, dim] of the same index. Raises
    `ValueError` for other shapes.
    """
    dim, total = values[0].shape[1], sum(map(len, rows))
    for numbers, found in zip(rows, values, strict=True):
        require_shape("values", found, (len(numbers), dim))
    merged_rows, merged = rows[0].new_empty(total), values[0].new_empty(total, dim)
    sizes = ctypes.c_int64 * len(rows)
    count = loop("mean_rows", merged)(
        ctypes.c_int64(len(rows)),
        pointers(rows),
        pointers(values),
        sizes(*map(len, rows)),
        sizes(),  # The next row of each, which the loop advances.
        ctypes.c_int64(dim),
        number_type(merged)(divisor),
        pointer(merged_rows),
        pointer(merged),
    )
    return merged_rows[:count], merged[:count]


def step_adagrad(  # noqa: PLR0917 - in the order of the loop's arguments
    rows: Tensor, gradients: Tensor, weight: Tensor, squares: Tensor, rate: float, eps: float
) -> None:
    """A step on the ascending `rows` [n] of `weight` [m, dim] and of the sums of squares, with gradients [n, dim].

    Uses up to `torch.get_num_threads()` threads, with equal results: no row occurs twice.

    Raises `IndexError` if `weight` does not have all the rows, and `ValueError` for other shapes.
    """
    require_shape("gradients", gradients, (len(rows), weight.shape[1]))
    require_shape("squares", squares, tuple(weight.shape))
    if len(rows) == 0:
        return
    if int(rows[0]) < 0 or int(rows[-1]) >= len(weight):
        raise IndexError(f"rows {int(rows[0])} to {int(rows[-1])} have gradients; the weight has {len(weight)} rows")
    number = number_type(weight)

    def step(begin: int, end: int) -> None:
        loop("step_adagrad", weight)(
            ctypes.c_int64(end - begin),
            pointer(rows[begin:end]),
            pointer(gradients[begin:end]),
            ctypes.c_int64(gradients.shape[1]),
            pointer(weight),
            pointer(squares),
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
    loop("standard_normal", values)(seed_of_twister, ctypes.c_int64(values.numel()), pointer(values))
    torch.autograd.graph.increment_version(values)


def _in_threads(work: Callable[[int, int], None], count: int) -> None:
    """Call `work(begin, end)` for consecutive parts of `range(count)`, in several threads if there is enough to do."""
    parts = max(1, min(torch.get_num_threads(), count // _ROWS_OF_A_THREAD))
    (begin, end), *others = pairwise(count * part // parts for part in range(parts + 1))
    futures = [_threads.submit(work, *other) for other in others]
    work(begin, end)
    for future in futures:
        future.result()


_threads = ThreadPoolExecutor(thread_name_prefix="rows")
"""Its threads start when they are needed first, and never before a process forks."""
