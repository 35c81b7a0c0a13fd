# pyright: standard
"""The loops in C refuse what they would read or write outside of memory. `test_rows` compares them with torch."""

import pytest
import torch

from rolecall.kit.native import row_loops


@pytest.mark.parametrize(
    ("rows", "gradients", "squares", "problem"),
    [
        ([0, 3], (2, 2), (3, 2), "rows 0 to 3 have gradients; the weight has 3 rows"),
        ([-1, 2], (2, 2), (3, 2), "rows -1 to 2 have gradients"),
        ([0, 1], (1, 2), (3, 2), r"the gradients have the shape \[1, 2\]; it must be \[2, 2\]"),
        ([0, 1], (2, 3), (3, 2), "the gradients have the shape"),
        ([0, 1], (2, 2), (2, 2), "the squares have the shape"),
    ],
)
def test_a_step_outside_of_its_tensors_is_refused(
    rows: list[int], gradients: tuple[int, int], squares: tuple[int, int], problem: str
) -> None:
    weight = torch.ones(3, 2)
    with pytest.raises((IndexError, ValueError), match=problem):
        row_loops.step_adagrad([torch.tensor(rows)], [torch.ones(gradients)], 1, weight, torch.ones(squares), 0.1, 0.0)
    assert weight.eq(1).all()


def test_a_merge_of_values_that_do_not_fit_is_refused() -> None:
    rows = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="the values have the shape"):
        row_loops.mean_rows([rows, rows], [torch.ones(2, 2), torch.ones(2, 3)], 1)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (torch.ones(15, dtype=torch.float64), "at least 16 values of float64, not 15 of float64"),
        (torch.ones(16), "not 16 of float32"),
    ],
)
def test_normal_values_in_what_can_not_hold_them_are_refused(values: torch.Tensor, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        row_loops.standard_normal(values, 0)
    assert values.eq(1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [(7,), (3, 4), (0, 7), (2, 0, 5), (7, 0)])
def test_rows_are_gathered_from_several_parts(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    whole = torch.randn(sum(sizes), 5, dtype=dtype)
    positions = torch.randint(len(whole), (40, 3))
    positions[0] = torch.tensor([0, len(whole) - 1, 0])
    found = row_loops.gather([part.clone() for part in whole.split(list(sizes))], positions)
    assert torch.equal(found, whole[positions])


def test_a_single_position_gives_a_single_row() -> None:
    assert row_loops.gather([torch.ones(1, 2), torch.zeros(1, 2)], torch.tensor(1)).tolist() == [0, 0]


def test_several_threads_gather_the_same_rows() -> None:
    parts = torch.randn(3000, 2), torch.randn(2000, 2)
    positions = torch.randint(5000, (3 * row_loops._ROWS_OF_A_THREAD + 1,))
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        found = row_loops.gather(parts, positions)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found, torch.cat(parts)[positions])


def test_no_rows_are_gathered_for_no_positions() -> None:
    assert row_loops.gather([torch.ones(0, 5)], torch.arange(0)).shape == (0, 5)


@pytest.mark.parametrize(
    ("positions", "shapes", "problem"),
    [
        ([0, 3], ((2, 2), (1, 2)), "positions 0 to 3 are to be in parts with 3 rows"),
        ([-1, 0], ((2, 2), (1, 2)), "positions -1 to 0"),
        ([0], ((2, 2), (1, 3)), "the parts have the shape"),
    ],
)
def test_rows_outside_of_their_parts_are_refused(
    positions: list[int], shapes: tuple[tuple[int, int], ...], problem: str
) -> None:
    with pytest.raises((IndexError, ValueError), match=problem):
        row_loops.gather([torch.ones(shape) for shape in shapes], torch.tensor(positions))


def test_a_step_counts_as_a_change_for_autograd() -> None:
    weight, squares = torch.ones(3, 2), torch.zeros(3, 2)
    before = weight._version
    row_loops.step_adagrad([torch.tensor([1])], [torch.ones(1, 2)], 1, weight, squares, 0.5, 0.0)
    assert weight._version > before
    assert weight.tolist() == [[1, 1], [0.5, 0.5], [1, 1]]


@pytest.mark.parametrize("skipped", [0, 3 * row_loops._ROWS_OF_A_THREAD])
def test_a_step_in_several_threads_has_equal_results(skipped: int) -> None:
    count, random = 3 * row_loops._ROWS_OF_A_THREAD + 1, torch.Generator().manual_seed(0)
    rows = [torch.arange(0, 2 * count, 2), torch.arange(0, 2 * count, 3)[skipped:], torch.arange(0)]
    gradients = [torch.randn(len(one), 4, generator=random) for one in rows]
    updated: list[torch.Tensor] = []
    threads = torch.get_num_threads()
    for number in (1, 3):
        weight, squares = torch.ones(2 * count, 4), torch.zeros(2 * count, 4)
        torch.set_num_threads(number)
        try:
            row_loops.step_adagrad(rows, gradients, 2, weight, squares, 0.5, 1e-10)
        finally:
            torch.set_num_threads(threads)
        updated.append(torch.cat([weight, squares]))
    assert torch.equal(*updated)
    mean = torch.zeros(2 * count, 4)
    for numbers, values in zip(rows, gradients, strict=True):
        mean[numbers] += values
    torch.testing.assert_close(updated[0][2 * count :], (mean / 2).square())
