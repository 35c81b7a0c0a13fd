# pyright: standard
"""Paths are compared with the schemas of the built-in workloads."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.job_paths import check_path
from rolecall.spec.api import RoleDocument, WorkloadDocument
from rolecall.workloads import catalogue

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").rglob("*.json"))


@cache
def document(name: str) -> WorkloadDocument:
    workload = catalogue.load(name)
    roles = {
        role: RoleDocument(default=count.default, least=count.least, most=count.most)
        for role, count in workload.roles.items()
    }
    return WorkloadDocument(name=name, summary="", roles=roles, params=workload.params.model_json_schema())


def paths(value: Any, above: tuple[str, ...] = ()) -> Iterator[str]:
    """The paths of all values in a JSON document."""
    if above:
        yield ".".join(above)
    fields = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list) else {}
    for name, inner in fields.items():
        yield from paths(inner, (*above, str(name)))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_path_of_the_examples_exists(example: Path) -> None:
    job = json.loads(example.read_text())
    workload = document(job["workload"])
    found = list(paths(job))
    assert len(found) >= 5
    for path in found:
        check_path(path, workload)


@pytest.mark.parametrize(
    "path",
    [
        "deadline_s",
        "params.cuts.0",
        "params.model.builder",
        "params.model.arguments.anything.at.all",
        "params.optimizer.betas.1",
        "params.lr_schedule.warmup_steps",
    ],
)
def test_a_path_into_unions_and_open_objects_exists(path: str) -> None:
    check_path(path, document("resnet-pipeline"))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("micro_batches", "a job has no field 'micro_batches'; valid: deadline_s, "),
        ("params.micro_batch", "params has no field 'micro_batch'; did you mean 'micro_batches'? valid: "),
        ("params.optimizer.rate", "params.optimizer has no field 'rate'; valid: betas, "),
        ("params.optimizer.betas.2", "params.optimizer.betas has no field '2'; set params.optimizer.betas as a whole"),
        ("params.micro_batches.x", "set params.micro_batches as a whole"),
        ("roles.stages", "resnet-pipeline has no role 'stages'; did you mean 'stage'? valid: master, stage"),
        ("roles.trainer", "resnet-pipeline has no role 'trainer'"),
    ],
)
def test_a_path_that_does_not_exist_is_refused(path: str, said: str) -> None:
    with pytest.raises(CommandError) as caught:
        check_path(path, document("resnet-pipeline"))
    assert caught.value.code is Exit.USAGE
    assert said in str(caught.value)
    assert f"--set {path}: " in str(caught.value)
