"""Refusals of a job, with the valid values."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rolecall.spec.errors import InputError
from rolecall.spec.role import Role
from rolecall.workloads.transformer_pipeline import WORKLOAD, Params
from rolecall.workloads.transformer_pipeline.check import check_counts, check_node


def params(**changes: Any) -> Params:
    return Params.model_validate({"text": {"train": "text.txt"}, **changes})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tied_embeddings": True}, "share weights between"),
        ({"dim": 12, "heads": 5}, "nearest valid: 4 or 6"),
        ({"dim": 12, "heads": 4}, "positions: learned"),
        ({"schedule": "1F1B", "virtual_stages": 2}, "schedule 1F1B requires 1"),
        ({"schedule": "ZBVZeroBubble", "virtual_stages": 3}, "requires 2"),
        ({"schedule": "LoopedBFS", "virtual_stages": 65}, "requires 1 to 64"),
        ({"split": "tracer", "dropout": 0.1}, "can't disable dropout"),
        ({"split": "tracer", "activation_checkpointing": True}, "has no layers to checkpoint"),
        ({"schedule": "ZBVZeroBubble", "activation_checkpointing": True}, "support it: GPipe, 1F1B"),
        ({"batch_size": 12, "replicas": 5}, "nearest valid: 4 or 6"),
        ({"batch_size": 12, "replicas": 2, "micro_batches": 4}, "nearest valid: 3 or 6"),
        ({"schedule": "GPipes"}, "Input should be 'GPipe'"),
        ({"text": {"train": "text.txt", "validation": 0.0}, "early_stopping": {}}, "early_stopping needs validation"),
        ({"model": {"builder": "mine:layer"}, "heads": 4}, "heads have no effect on custom layers"),
    ],
)
def test_parameters_that_do_not_fit_together_are_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        params(**changes)


@pytest.mark.parametrize(
    ("stages", "changes", "expected"),
    [
        (3, {"replicas": 2}, "use 2 × the number of pipeline ranks: 4"),
        (2, {"replicas": 2}, "use 4 stages, or set replicas to at most 1"),
        (4, {"layers": 7, "schedule": "LoopedBFS"}, "set layers to at least 8"),
        (4, {"micro_batches": 2}, "nearest valid for batches of 32: 4"),
        (4, {"schedule": "DualPipeV", "micro_batches": 4}, "nearest valid for batches of 32: 8"),
        (2, {"schedule": "Interleaved1F1B", "batch_size": 5, "micro_batches": 5}, "nearest valid for batches of 5: 1"),
        (
            8,
            {"batch_size": 6, "micro_batches": 6},
            "no number of micro-batches is valid for batches of 6; use a larger batch_size",
        ),
    ],
)
def test_counts_that_make_no_pipeline_are_refused(stages: int, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        check_counts(params(**changes), {Role.STAGE: stages})


def test_the_defaults_are_legal() -> None:
    check_counts(params(), {Role.STAGE: WORKLOAD.roles[Role.STAGE].default})


def test_a_missing_text_is_refused_on_the_node(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        check_node(params(text={"train": str(tmp_path / "nowhere.txt")}), Role.STAGE)


def test_layers_that_the_operator_has_not_allowed_are_refused_on_the_node() -> None:
    with pytest.raises(InputError, match="the operator has not allowed"):
        check_node(params(model={"builder": "os:system"}), Role.STAGE)
