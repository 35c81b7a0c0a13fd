"""The tensors that the loops in C can read."""

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


@pytest.mark.usefixtures("without_loops")
def test_without_a_library_nothing_has_loops() -> None:
    assert not library.is_native(torch.ones(2))


@pytest.mark.usefixtures("without_loops")
def test_a_missing_library_is_logged_once_where_its_loops_would_run(caplog: pytest.LogCaptureFixture) -> None:
    library.is_native(torch.ones(2, dtype=torch.bfloat16))
    library.is_native(torch.ones(2, device="meta"))
    assert not caplog.records
    for _ in range(2):
        library.is_native(torch.ones(2))
    (message,) = caplog.messages
    assert message == "the package was built without a C compiler: torch updates rows and policies, which takes longer"
