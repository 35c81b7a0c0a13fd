"""A custom schedule must fit the other parameters and the number of ranks."""

from typing import Any

import pytest
from pydantic import ValidationError

from rolecall.spec.role import Role
from rolecall.workloads.transformer_pipeline.check import check_counts
from rolecall.workloads.transformer_pipeline.params import Params

ROWS = ["0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"]


def params(**changes: Any) -> Params:
    given = {
        "text": {"train": "unread", "tokens": "character"},
        "schedule": {"rows": ROWS},
        "micro_batches": 2,
        "layers": 4,
        **changes,
    }
    return Params.model_validate(given)


def test_rows_determine_the_virtual_stages() -> None:
    assert params().stages_per_rank == 1
    check_counts(params(), {Role.STAGE: 2})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"micro_batches": 4}, "the schedule has 2 micro-batches"),
        ({"virtual_stages": 2}, "the schedule has 1 virtual stage on"),
        (
            {"schedule": {"rows": ["0F0,0F1,0I0,0W0,0B1", ROWS[1]]}, "activation_checkpointing": True},
            "splits backward passes",
        ),
    ],
)
def test_other_parameters_must_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        params(**changes)


def test_the_number_of_ranks_must_fit() -> None:
    with pytest.raises(ValueError, match="the schedule has 2 rows"):
        check_counts(params(), {Role.STAGE: 4})
