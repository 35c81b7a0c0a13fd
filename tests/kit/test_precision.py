"""One meaning of `precision` for all workloads."""

import pytest
import torch

from rolecall.kit.params import Precision
from rolecall.kit.precision import autocast, require_precision, weight_dtype
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


def test_a_gpu_without_bfloat16_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(InputError, match="Tesla T4 does not support bfloat16; set precision to float32"):
        require_precision("bfloat16", GPU)
    require_precision("float32", GPU)
