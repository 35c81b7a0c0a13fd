"""Which tensors the loops in C can read."""

from pathlib import Path

import pytest
import torch

from rolecall.kit.native import library


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
    assert library.is_native(tensor) == expected
    assert not library.is_native(torch.ones(2), torch.ones(2, dtype=torch.float64))


def test_without_a_library_nothing_has_loops(tmp_path: Path) -> None:
    library.load(tmp_path / "missing.so")
    assert not library.is_native(torch.ones(2))


def test_a_missing_library_is_logged_where_its_loops_would_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    library.warn_if_missing(torch.device("cpu"), "updates the rows")
    library.load(tmp_path / "missing.so")
    library.warn_if_missing(torch.device("cuda"), "updates the rows")
    assert not caplog.records
    library.warn_if_missing(torch.device("cpu"), "updates the rows")
    assert "without a C compiler: torch updates the rows, which takes longer" in caplog.text
