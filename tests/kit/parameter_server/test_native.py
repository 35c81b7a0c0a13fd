"""The loops in C refuse what they would read or write outside of memory. `test_rows` compares them with torch."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rolecall.kit.parameter_server import native


@pytest.fixture(scope="module", autouse=True)
def loops(library: Path) -> Iterator[None]:
    native.load(library)
    yield
    native.load(native.LIBRARY)


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.ones(3, 4), True),
        (torch.ones(3, 4, dtype=torch.float64), True),
        (torch.ones(3, 4, dtype=torch.bfloat16), False),
        (torch.ones(3, 4).t(), False),
        (torch.ones(3, 4, device="meta"), False),
    ],
)
def test_which_tensors_have_loops(tensor: torch.Tensor, expected: bool) -> None:
    assert native.is_native(tensor) == expected
    assert not native.is_native(torch.ones(2), torch.ones(2, dtype=torch.float64))


def test_without_a_library_nothing_has_loops(tmp_path: Path, library: Path) -> None:
    native.load(tmp_path / "missing.so")
    try:
        assert not native.is_native(torch.ones(2))
    finally:
        native.load(library)


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
        native.step_adagrad(torch.tensor(rows), torch.ones(gradients), weight, torch.ones(squares), 0.1, 1e-10)
    assert weight.eq(1).all()


def test_a_merge_of_values_that_do_not_fit_is_refused() -> None:
    rows = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="the values have the shape"):
        native.mean_rows([rows, rows], [torch.ones(2, 2), torch.ones(2, 3)], 1)


def test_a_step_counts_as_a_change_for_autograd() -> None:
    weight, squares = torch.ones(3, 2), torch.zeros(3, 2)
    before = weight._version
    native.step_adagrad(torch.tensor([1]), torch.ones(1, 2), weight, squares, 0.5, 0.0)
    assert weight._version > before
    assert weight.tolist() == [[1, 1], [0.5, 0.5], [1, 1]]
