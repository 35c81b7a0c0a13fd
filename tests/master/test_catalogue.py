"""Plug-ins, good and broken, and the parts of a request's check that the API tests leave out."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from rolecall.master.catalogue import load
from rolecall.spec.errors import InvalidJob, NotFound
from rolecall.spec.job import JobRequest
from rolecall.spec.resources import Resources
from rolecall.spec.role import Role
from rolecall.workloads.catalogue import GROUP

from .harness import CATALOGUE

PLUGIN = """
from rolecall.spec.role import Role
from rolecall.spec.workload import Params, RoleCount, Workload
def make(*roles):
    return Workload("mine", "", "{name}", Params, {{role: RoleCount(1) for role in roles}})
GOOD = make(Role.TRAINER)
OMNIPRESENT = Workload("mine", "", "{name}", Params, {{}}, per_node=True)
ROLELESS = make(Role.TRAINER, Role.OBSERVER)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An import package with a trainer and no observer."""
    name = f"plugin_{tmp_path.name}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(PLUGIN.format(name=name))
    (tmp_path / name / "trainer.py").write_text("raise RuntimeError('the master never imports a role')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return name


def test_a_broken_plugin_is_reported_and_leaves_the_others_alone(package: str) -> None:
    values = {
        "mine": f"{package}:GOOD",
        "roleless": f"{package}:ROLELESS",
        "omnipresent": f"{package}:OMNIPRESENT",
        "gone": "no_such_package:X",
        "odd": "sys:path",
    }
    catalogue = load([EntryPoint(name, value, GROUP) for name, value in values.items()])
    assert list(catalogue.workloads) == ["mine"]
    assert catalogue.get("mine").name == "mine"
    assert "has no module" in catalogue.broken["roleless"]
    assert "a kind of PerNodeParams" in catalogue.broken["omnipresent"]
    assert "no_such_package" in catalogue.broken["gone"]
    assert "has the type list, not Workload" in catalogue.broken["odd"]
    with pytest.raises(NotFound, match="could not be loaded"):
        catalogue.get("gone")


def test_the_installed_workloads_are_whole() -> None:
    catalogue = load()
    assert catalogue.broken == {}
    assert "embedding-ddp" in catalogue.workloads


def test_defaults_are_filled_in_and_absent_roles_left_out() -> None:
    fields = CATALOGUE.check_request(JobRequest(workload="toy"))
    assert fields["roles"] == {Role.PARAMETER_SERVER: 1, Role.TRAINER: 2}
    assert fields["params"] == {"steps": 10, "learning_rate": 0.1}


def test_all_that_is_wrong_is_reported_at_once() -> None:
    with pytest.raises(InvalidJob) as caught:
        CATALOGUE.check_request(JobRequest(workload="toy", params={"steps": 0, "stepz": 1}, roles={Role.STAGE: 1}))
    assert [field_error["field"] for field_error in caught.value.field_errors] == [
        "roles.stage",
        "params.steps",
        "params.stepz",
    ]


def test_roles_of_a_per_node_workload_are_not_asked_for() -> None:
    catalogue = load()
    assert catalogue.check_request(JobRequest(workload="preflight"))["roles"] == {}
    with pytest.raises(InvalidJob, match="runs on each node once") as caught:
        catalogue.check_request(JobRequest(workload="preflight", roles={Role.TRAINER: 2}))
    assert [field_error["field"] for field_error in caught.value.field_errors] == ["roles"]
    assert catalogue.is_per_node("preflight")
    assert not catalogue.is_per_node("embedding-ddp")
    assert not catalogue.is_per_node("gone")


def test_workloads_declare_what_their_roles_need() -> None:
    catalogue = load()
    request = JobRequest(workload="rnn-lm", params={"text": {"train": "text.txt"}})
    assert catalogue.check_request(request)["resources"] == {Role.PARAMETER_SERVER: Resources(busy=True)}
    observed = CATALOGUE.check_request(JobRequest(workload="toy", roles={Role.OBSERVER: 2}))
    assert observed["resources"] == {Role.OBSERVER: Resources(gpus=0)}


def test_a_master_rank_gets_no_gpu() -> None:
    roles = {"master": {"gpus": 1}, "stage": {"gpus": 1}}
    with pytest.raises(InvalidJob, match="master workers of resnet-pipeline can't use a GPU") as caught:
        load().check_request(JobRequest.model_validate({"workload": "resnet-pipeline", "roles": roles}))
    assert [one["field"] for one in caught.value.field_errors if one["field"].startswith("roles")] == [
        "roles.master.gpus"
    ]


def test_a_workload_that_is_no_longer_installed_has_no_expendable_roles() -> None:
    assert CATALOGUE.expendable("gone") == frozenset()


def test_lists_are_taken_where_a_name_could_stand_for_their_owner() -> None:
    environment = {"id": "CartPole-v1", "wrappers": ["FlattenObservation"]}
    params = {"environment": environment, "policy": {"name": "mlp", "hidden": [32, 16]}}
    checked = load().check_request(JobRequest(workload="reinforce", params=params))["params"]
    assert checked["policy"]["hidden"] == [32, 16]
    assert checked["environment"]["wrappers"][0]["entry_point"] == "FlattenObservation"


_ROWS = {"train": "a.csv", "label": "y", "categorical": ["job"]}


@pytest.mark.parametrize(
    ("workload", "params", "fields"),
    [
        ("transformer-pipeline", {"text": {"train": "a.txt"}, "layers": "8"}, ["layers"]),
        ("rnn-lm", {"text": {"train": ["a", 1, "", 2]}}, ["text.train.1", "text.train.2", "text.train.3"]),
        ("embedding-ddp", {"data": {**_ROWS, "shuffle_buffer": "512"}}, ["data.shuffle_buffer"]),
        ("embedding-ddp", {"data": {**_ROWS, "max_bad_rows": 0.0, "stream": 1}}, ["data.max_bad_rows", "data.stream"]),
        (
            "embedding-ddp",
            {"data": {**_ROWS, "categorical": ["job", {"column": "city", "min_count": "2"}]}},
            ["data.categorical.1.min_count"],
        ),
        (
            "embedding-ddp",
            {"data": {"synthetic": {"rows": "512", "signal": True}}},
            ["data.synthetic.rows", "data.synthetic.signal"],
        ),
    ],
)
def test_every_value_of_a_wrong_kind_is_reported(workload: str, params: dict[str, Any], fields: list[str]) -> None:
    with pytest.raises(InvalidJob) as caught:
        load().check_request(JobRequest(workload=workload, params=params))
    assert [one["field"].removeprefix("params.") for one in caught.value.field_errors] == fields


def test_an_integer_is_a_number() -> None:
    request = JobRequest(workload="embedding-ddp", params={"data": {"synthetic": {"signal": 1}}})
    assert load().check_request(request)["params"]["data"]["synthetic"]["signal"] == 1.0
