"""Checks of a job before its gang starts."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rolecall.master.catalogue import check_roles
from rolecall.spec.errors import InputError
from rolecall.spec.job import JobRequest
from rolecall.spec.role import Role
from rolecall.workloads.rnn_lm import WORKLOAD
from rolecall.workloads.rnn_lm.check import check_counts, check_node
from rolecall.workloads.rnn_lm.params import Params

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["rnn-lm", "tutorials/rnn"])
def test_the_examples_are_legal(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(ROOT)
    example = JobRequest.model_validate_json((ROOT / f"examples/{name}.json").read_text())
    found = Params.model_validate(example.params)
    check_counts(found, check_roles(WORKLOAD, example.roles)[0])
    check_node(found, Role.TRAINER)


def params(**given: Any) -> Params:
    return Params.model_validate({"text": {"train": "text"}, **given})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"protocol": "tutorial"}, "set max_grad_norm to null"),
        ({"protocol": "tutorial", "max_grad_norm": None, "lr_schedule": {"shape": "cosine"}}, "omit lr_schedule"),
        ({"early_stopping": {}, "text": {"train": "t", "validation": 0.0}}, "early_stopping needs validation text"),
        ({"sample": {"prompt": " \t"}}, "a blank prompt has no tokens"),
        (
            {"model": {"builder": "mine:gru"}, "layers": 3},
            "layers has no effect on a custom model; omit layers or model",
        ),
        ({"model": {"builder": "mine:gru"}, "initial_state": "random"}, "makes its own state; omit it"),
        ({"initial_state": "normal"}, "'zero' or 'random'"),
        ({"loss_at": "master"}, "'server' or 'trainer'"),
        ({"dropout": 1.0}, "less than 1"),
        ({"text": {"train": []}}, "at least 1 item"),
        ({"text": {"synthetic": {"tokens": 33}, "validation": 0.1}}, "set more tokens"),
        ({"text": {"synthetic": {"tokens": 999}}, "sample": {"prompt": "one"}}, "use numbers from 0 to 9999"),
        ({"hidden": 3}, "Extra inputs are not permitted"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        params(**given)


def test_every_parameter_is_documented() -> None:
    schema = WORKLOAD.params.model_json_schema()
    definitions = [schema, *schema["$defs"].values()]
    assert all("description" in one for found in definitions for one in found.get("properties", {}).values())


def test_every_trainer_needs_a_stream() -> None:
    check_counts(params(batch_size=2), {Role.PARAMETER_SERVER: 1, Role.TRAINER: 2})
    with pytest.raises(ValueError, match="set it to 3 or more, or use at most 2 trainers"):
        check_counts(params(batch_size=2), {Role.PARAMETER_SERVER: 1, Role.TRAINER: 3})


def test_every_server_needs_a_token_of_a_synthetic_text() -> None:
    small = params(text={"synthetic": {"tokens": 999, "vocabulary": 3}})
    check_counts(small, {Role.PARAMETER_SERVER: 3, Role.TRAINER: 1})
    with pytest.raises(ValueError, match="set it to 4 or more, or use at most 3 servers"):
        check_counts(small, {Role.PARAMETER_SERVER: 4, Role.TRAINER: 1})


def test_only_trainers_read_the_text(tmp_path: Path) -> None:
    missing = params(text={"train": str(tmp_path / "text")})
    check_node(missing, Role.PARAMETER_SERVER)
    with pytest.raises(InputError, match="does not exist on this node"):
        check_node(missing, Role.TRAINER)


def test_a_builder_must_be_allowed() -> None:
    with pytest.raises(InputError, match="the operator has not allowed json"):
        check_node(params(model={"builder": "json:loads"}), Role.TRAINER)
