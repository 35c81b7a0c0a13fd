"""Refusals of a job, with the valid values."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rolecall.spec.errors import InputError
from rolecall.spec.role import Role
from rolecall.workloads.transformer_pipeline import WORKLOAD, Params
from rolecall.workloads.transformer_pipeline.check import check_counts, check_node

EXAMPLES = Path(__file__).parents[3] / "examples"


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
        ({"split": "tracer", "dropout": 0.1}, "dropout can't be disabled"),
        ({"split": "tracer", "activation_checkpointing": True}, "activation_checkpointing needs layers"),
        ({"schedule": "ZBVZeroBubble", "activation_checkpointing": True}, "support it: GPipe, 1F1B"),
        ({"batch_size": 12, "replicas": 5}, "nearest valid: 4 or 6"),
        ({"batch_size": 12, "replicas": 2, "micro_batches": 4}, "nearest valid: 3 or 6"),
        ({"schedule": "GPipes"}, "Input should be 'GPipe'"),
        ({"text": {"train": "text.txt", "validation": 0.0}, "early_stopping": {}}, "early_stopping needs validation"),
        ({"text": {"synthetic": {"tokens": 8192}, "validation": 0.0}}, "but a step needs 8193"),
        ({"text": {"synthetic": {"tokens": 9000, "vocabulary": 5}}, "sample": {"prompt": "5"}}, "from 0 to 4"),
        ({"model": {"builder": "mine:layer"}, "heads": 4}, "heads has no effect on custom layers"),
        (
            {"model": {"builder": "mine:model", "builds": "model"}, "layers": 4, "dropout": 0.1},
            "(?s)layers has no effect on a custom whole model.*dropout has no effect",
        ),
        ({"layers": 3, "cuts": ["layers.3"]}, "no block layers.3 to cut before; valid: layers.0, layers.1, layers.2"),
        ({"layers": 3, "cuts": [{"layer": "head", "at": "end"}]}, "no block head to cut after; valid: embedding"),
        ({"cuts": ["layers.2", {"layer": "layers.1", "at": "end"}]}, "in the model's order, each at most once"),
        ({"cuts": "pipe_split"}, "set model and split: tracer"),
        ({"cuts": "pipe_split", "model": {"builder": "mine:model", "builds": "model"}}, "set model and split: tracer"),
        ({"cuts": "pipe_split", "split": "tracer"}, "set model and split: tracer"),
        ({"cuts": [{"layer": "layers.2", "at": "middle"}]}, "Input should be 'beginning' or 'end'"),
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
        (2, {"cuts": ["layers.1", "layers.2"]}, "cuts has 2 blocks for 2 virtual stages; it needs 1"),
        (2, {"cuts": ["layers.1"], "schedule": "ZBVZeroBubble"}, "for 4 virtual stages; it needs 3"),
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


@pytest.mark.parametrize(
    ("stages", "changes"),
    [
        (3, {"layers": 1, "cuts": ["layers.0", "head"], "micro_batches": 4}),
        (2, {"model": {"builder": "mine:model", "builds": "model"}, "cuts": ["whatever"]}),
        (16, {"model": {"builder": "mine:model", "builds": "model"}, "micro_batches": 16}),
    ],
)
def test_cuts_that_fit(stages: int, changes: dict[str, Any]) -> None:
    check_counts(params(**changes), {Role.STAGE: stages})


def test_workers_read_what_the_master_stored() -> None:
    given = params(cuts=["layers.1", {"layer": "layers.3", "at": "end"}])
    assert Params.model_validate(given.model_dump(mode="json")) == given


@pytest.mark.parametrize("split", ["manual", "tracer"])
def test_the_tutorials_jobs_are_legal(split: str) -> None:
    body = json.loads((EXAMPLES / f"tutorials/pipelining-{split}.json").read_text())
    given = Params.model_validate(body["params"])
    assert given.split == split
    check_counts(given, {Role(name): count for name, count in body["roles"].items()})


def test_the_defaults_are_legal() -> None:
    check_counts(params(), {Role.STAGE: WORKLOAD.roles[Role.STAGE].default})


def test_a_missing_text_is_refused_on_the_node(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        check_node(params(text={"train": str(tmp_path / "nowhere.txt")}), Role.STAGE)


def test_layers_that_the_operator_has_not_allowed_are_refused_on_the_node() -> None:
    with pytest.raises(InputError, match="the operator has not allowed"):
        check_node(params(model={"builder": "os:system"}), Role.STAGE)


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        ("layers.4", None),
        ({"layer": "output", "at": "end"}, "no block output to cut after; valid: tok_embeddings, layers.0, .*, norm$"),
        ("layers.8", r"^cuts: the model has no block layers\.8 to cut before; valid: layers\.0, .*, output$"),
    ],
)
def test_a_cut_that_a_custom_model_does_not_have_is_refused_on_the_node(
    cut: Any, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the model has weights: these would take terabytes."""
    monkeypatch.setenv("ROLECALL_PLUGINS", str(EXAMPLES / "tutorials"))
    monkeypatch.setattr(sys, "path", sys.path[:])
    model = {"builds": "model", "builder": "tutorial_transformer:transformer", "arguments": {"dim": 2**20}}
    given = params(model=model, cuts=[cut], text={"synthetic": {"tokens": 100_000}})
    with pytest.raises(InputError, match=expected) if expected else nullcontext():
        check_node(given, Role.STAGE)
