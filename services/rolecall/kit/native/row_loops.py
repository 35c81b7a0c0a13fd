"""Loops over rows and their first values (`row_loops.c`). The results are those of torch except for rounding."""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import accumulate, pairwise
from typing import TypeVar

import torch
from torch import Tensor

from rolecall.kit.native.library import loop, number_type, pointer, pointers, require_shape

_B = TypeVar("_B")
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
    rows: Sequence[Tensor],
    gradients: Sequence[Tensor],
    divisor: int,
    weight: Tensor,
    squares: Tensor,
    rate: float,
    eps: float,
) -> None:
    """A step on rows of `weight` [m, dim] and of the sums of squares, with the sum of their gradients over `divisor`.

    Each of `rows` [n], at least one, ascends without duplicates, and belongs to the `gradients` [n, dim] of the same
    index. The rows' mean gradients are never in memory together. Uses up to `torch.get_num_threads()` threads, with
    equal results.

    Raises `IndexError` if `weight` does not have all the rows, and `ValueError` for other shapes.
    """
    require_shape("squares", squares, tuple(weight.shape))
    for numbers, found in zip(rows, gradients, strict=True):
        require_shape("gradients", found, (len(numbers), weight.shape[1]))
        if len(numbers) > 0 and (int(numbers[0]) < 0 or int(numbers[-1]) >= len(weight)):
            first, last = int(numbers[0]), int(numbers[-1])
            raise IndexError(f"rows {first} to {last} have gradients; the weight has {len(weight)} rows")
    number, sizes = number_type(weight), ctypes.c_int64 * len(rows)

    def step(begins: Sequence[int], ends: Sequence[int]) -> None:
        mean = weight.new_empty(weight.shape[1])  # Memory for the loop.
        loop("step_adagrad", weight)(
            ctypes.c_int64(len(rows)),
            pointers([one[begin:] for one, begin in zip(rows, begins, strict=True)]),
            pointers([one[begin:] for one, begin in zip(gradients, begins, strict=True)]),
            sizes(*(end - begin for begin, end in zip(begins, ends, strict=True))),
            sizes(),  # The next row of each, which the loop advances.
            ctypes.c_int64(weight.shape[1]),
            number(divisor),
            pointer(mean),
            pointer(weight),
            pointer(squares),
            number(rate),
            number(eps),
        )

    _run_in_threads(step, pairwise(_cuts(rows)))
    torch.autograd.graph.increment_version((weight, squares))  # As operations in place do, which autograd checks.


def gather(parts: Sequence[Tensor], positions: Tensor) -> Tensor:
    """The rows [..., dim] of the joined `parts` [n, dim] at `positions` [...], without a copy of the joined parts.

    Uses up to `torch.get_num_threads()` threads.

    Raises `IndexError` for a position outside of them, and `ValueError` for parts with different dimensions.
    """
    total, dim = sum(map(len, parts)), parts[0].shape[1]
    for part in parts:
        require_shape("parts", part, (len(part), dim))
    rows = parts[0].new_empty(*positions.shape, dim)
    if not positions.numel():
        return rows
    lowest, highest = (int(one) for one in positions.aminmax())
    if lowest < 0 or highest >= total:
        raise IndexError(f"the positions {lowest} to {highest} are to be in parts with {total} rows")
    ends = (ctypes.c_int64 * len(parts))(*accumulate(map(len, parts)))
    flat, flat_rows = positions.flatten(), rows.view(positions.numel(), dim)

    def copy(begin: int, end: int) -> None:
        loop("gather_rows")(
            pointers(parts),
            ends,
            ctypes.c_int64(end - begin),
            pointer(flat[begin:end]),
            ctypes.c_int64(dim * rows.itemsize),
            pointer(flat_rows[begin:end]),
        )

    count = max(1, min(torch.get_num_threads(), len(flat) // _ROWS_OF_A_THREAD))
    _run_in_threads(copy, pairwise(len(flat) * part // count for part in range(count + 1)))
    return rows


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


def _run_in_threads(work: Callable[[_B, _B], None], parts: Iterable[tuple[_B, _B]]) -> None:
    """Call `work` with the begin and the end of each part: of the first one in this thread."""
    first, *others = parts
    futures = [_threads.submit(work, *other) for other in others]
    try:
        work(*first)
    finally:
        wait(futures)
    for future in futures:
        future.result()


def _cuts(rows: Sequence[Tensor]) -> list[list[int]]:
    """The indices in each of `rows` where the parts of the threads begin and end. No two parts have the same row."""
    longest = max(rows, key=len)
    parts = max(1, min(torch.get_num_threads(), sum(map(len, rows)) // _ROWS_OF_A_THREAD))
    firsts = longest[[len(longest) * part // parts for part in range(1, parts)]]
    found = [torch.searchsorted(one, firsts) for one in rows]
    inner = [[int(one[part]) for one in found] for part in range(parts - 1)]
    return [[0] * len(rows), *inner, list(map(len, rows))]


_threads = ThreadPoolExecutor(thread_name_prefix="rows")
"""Its threads start when first needed, and never before a process forks."""
