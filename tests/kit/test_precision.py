# pyright: standard
"""One meaning of `precision` for all workloads."""

from collections.abc import Iterator

import pytest
import torch

from rolecall.kit import precision
from rolecall.kit.params import Precision, check_precision
from rolecall.kit.precision import autocast, weight_dtype
from rolecall.spec.errors import InputError

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def test_bfloat16_is_computed_in_and_weights_stay_float32() -> None:
    weights = torch.ones(2, 2, dtype=weight_dtype("bfloat16"))
    assert weights.dtype == torch.float32
    with autocast("bfloat16", CPU):
        assert (weights @ weights).dtype == torch.bfloat16


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_other_types_are_computed_in_as_they_are(precision: Precision) -> None:
    weights = torch.ones(2, 2, dtype=weight_dtype(precision))
    with autocast(precision, CPU):
        assert (weights @ weights).dtype == weights.dtype == getattr(torch, precision)


@pytest.fixture
def old_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A worker whose GPU emulates bfloat16."""
    precision._without_bfloat16.cache_clear()  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    yield
    precision._without_bfloat16.cache_clear()  # pyright: ignore[reportPrivateUsage]


@pytest.mark.usefixtures("old_gpu")
def test_a_gpu_without_bfloat16_is_named() -> None:
    for precision_check in (check_precision, lambda precision: autocast(precision, GPU)):
        with pytest.raises(InputError, match="Tesla T4 does not support bfloat16; set precision to float32"):
            precision_check("bfloat16")
    check_precision("float32")


def test_cpus_emulate_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    check_precision("bfloat16")
