"""All workloads that have `precision: bfloat16` check it in the same place."""

from typing import Any

import pytest
import torch

from rolecall.kit import precision
from rolecall.spec.errors import InputError
from rolecall.spec.role import Role
from rolecall.workloads import catalogue


@pytest.mark.parametrize(
    ("workload", "given"),
    [
        ("rnn-lm", {"text": {"train": "text"}}),
        ("resnet-pipeline", {"data": {"train": "images"}}),
        ("transformer-pipeline", {"text": {"train": "text"}}),
    ],
)
def test_every_role_that_computes_checks_it_before_the_rendezvous(
    workload: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(precision: str, device: torch.device) -> None:
        raise InputError(f"this GPU does not support {precision}")

    monkeypatch.setattr(precision, "require_precision", refuse)
    found = catalogue.load(workload)
    assert found.check_node is not None
    params = found.params.model_validate({**given, "precision": "bfloat16"})
    for role in set(found.roles) - {Role.MASTER}:
        with pytest.raises(InputError, match="this GPU does not support bfloat16"):
            found.check_node(params, role)
