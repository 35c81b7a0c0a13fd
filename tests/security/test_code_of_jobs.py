# pyright: standard
"""A job names no code but what the operator allowed: each request here once ran a command or imported what it liked."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import pytest
from pydantic import ValidationError

from rolecall.kit.builders import Builder, build, check_builder
from rolecall.kit.environments import creation
from rolecall.master.catalogue import load
from rolecall.spec.errors import InputError
from rolecall.spec.role import Role
from rolecall.workloads.catalogue import GROUP
from rolecall.workloads.reinforce.build import new_policy
from rolecall.workloads.reinforce.check import check_node
from rolecall.workloads.reinforce.params import Environment, Params

PLUGIN = """
import os
import subprocess
from os import system as borrowed
from functools import partial
from pathlib import Path
import gymnasium

class Task(gymnasium.Env): ...
class NotAnEnvironment: ...
PARTIAL = partial(os.system)

def make_task(**given):
    Path({ran!r}).touch()
    return Task()
"""
SPACES = {"observation": {"shape": [4]}, "action": {"count": 2, "start": 0}}


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """The file that a command would write if it ran."""
    return tmp_path / "ran"


@pytest.fixture
def plugins(tmp_path: Path, ran: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the operator allowed, with the module `their_tasks` in it."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "their_tasks.py").write_text(PLUGIN.format(ran=str(ran)))
    monkeypatch.setenv("ROLECALL_PLUGINS", str(folder))
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    return folder


def refusal(environment: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        check_node(Params.model_validate({"environment": environment}), Role.OBSERVER)
    return str(caught.value)


@pytest.mark.parametrize("vectorization", ["loop", "own"])
@pytest.mark.parametrize(
    "name",
    [
        "gymnasium.vector.utils.misc:os.system",
        "gymnasium.vector.utils.misc:os",
        "gymnasium.envs.registration:load_env_creator",
        "gymnasium.envs.registration:importlib.import_module",
        "gymnasium:make",
        "gymnasium.envs.classic_control.cartpole:CartPoleEnv",
        "os:system-v0",
        "os:system",
        "a:b:CartPole-v1",
        ":CartPole-v1",
        "..os:CartPole-v1",
        "a/../b:CartPole-v1",
    ],
)
def test_without_an_operators_word_no_environment_names_a_module(name: str, vectorization: str, ran: Path) -> None:
    given = {"id": name, "kwargs": {"command": f"touch {ran}"}, "vectorization": vectorization}
    assert "has not allowed " in refusal(given)
    with pytest.raises(InputError, match=r"has not allowed|has no vector implementation"):
        creation.make_vector(Environment.model_validate(given), 1)
    assert not ran.exists()


def test_an_id_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: Path) -> None:
    (tmp_path / "bystander.py").write_text(f"open({str(ran)!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "has not allowed bystander" in refusal({"id": "bystander:CartPole-v1"})
    assert not ran.exists()


@pytest.mark.parametrize(
    "name",
    [
        "gymnasium.vector.utils.misc:os.system",
        "os.system",
        "importlib.import_module",
        "vector.utils.np",
    ],
)
def test_a_wrapper_is_no_path_of_attributes(name: str) -> None:
    with pytest.raises(ValidationError, match="String should match pattern"):
        Params.model_validate({"environment": {"id": "CartPole-v1", "wrappers": [name]}})


@pytest.mark.parametrize(
    ("wrapper", "said"),
    [
        ("importlib", "is not a wrapper of gymnasium.wrappers"),
        ("vector", "is not a wrapper of gymnasium.wrappers"),
        ("__getattr__", "is not a wrapper of gymnasium.wrappers"),
        ("gymnasium.wrappers:TimeLimit", "has not allowed gymnasium.wrappers"),
        ("subprocess:Popen", "has not allowed subprocess"),
        ("ArrayConversion", "policies take NumPy arrays"),
        ("HumanRendering", "no screen"),
        ("RecordVideo", "jobs can't write files"),
    ],
)
def test_a_wrapper_is_a_wrapper(wrapper: str, said: str, tmp_path: Path) -> None:
    given = {"entry_point": wrapper, "kwargs": {"video_folder": str(tmp_path / "video")}}
    assert said in refusal({"id": "CartPole-v1", "wrappers": [given]})
    assert not (tmp_path / "video").exists()


@pytest.mark.parametrize("name", ["borrowed", "os", "subprocess", "PARTIAL", "Path"])
def test_what_an_allowed_module_imports_is_not_allowed_with_it(plugins: Path, name: str) -> None:
    said = refusal({"id": f"their_tasks:{name}", "kwargs": {"command": "true"}})
    assert "has not allowed " in said or "has no function" in said
    assert "doesn't exist" in refusal({"id": f"their_tasks:{name}.Popen"})  # it is looked up in the registry alone
    with pytest.raises(InputError, match=r"has not allowed|has no function"):
        check_builder(Builder(builder=f"their_tasks:{name}"))


def test_an_allowed_module_gives_environments_and_wrappers_only(plugins: Path, ran: Path) -> None:
    assert "is not a gymnasium.Env" in refusal({"id": "their_tasks:NotAnEnvironment"})
    assert "is not a gymnasium.Wrapper" in refusal({"id": "CartPole-v1", "wrappers": ["their_tasks:Task"]})
    assert not ran.exists()
    made = creation.make(Environment(id="their_tasks:make_task"))
    assert type(made).__name__ == "Task"
    assert ran.exists()


@pytest.mark.parametrize(
    "name", ["torchvision.datasets.utils:os", "torchvision.datasets.folder:Image", "torchvision.models.resnet:partial"]
)
def test_what_an_allowed_package_imports_is_not_allowed_with_it(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("ROLECALL_BUILDERS", "torchvision")
    with pytest.raises(InputError, match=r"has not allowed|has no function"):
        check_builder(Builder(builder=name))


def test_a_builder_walks_no_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError):
        Builder(builder="torchvision.datasets.utils:os.system")
    monkeypatch.setenv("ROLECALL_BUILDERS", "torchvision")
    assert "has no function" in refusal({"id": "torchvision.datasets.utils:os"})
    assert "Malformed environment ID" in refusal({"id": "torchvision.datasets.utils:os.system()"})


def test_a_folder_of_an_installed_modules_name_does_not_allow_that_module(plugins: Path) -> None:
    """Python takes an installed module before a folder without `__init__.py`, and one that is imported before both."""
    (plugins / "shutil").mkdir()
    (plugins / "sys").mkdir()
    (plugins / "subprocess.py").write_text("def Popen(*given): ...\n")
    for name in ("shutil:rmtree", "subprocess:Popen", "sys:exit"):
        with pytest.raises(InputError, match=r"has not allowed \w+, which comes from"):
            build(Builder(builder=name))


def test_a_packages_command_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECALL_BUILDERS", "json,pip")
    with pytest.raises(InputError, match=r"has not allowed pip\.__main__"):
        check_builder(Builder(builder="pip.__main__:main"))


@pytest.mark.parametrize(
    "name",
    ["GymV26Environment-v0", "GymV26Environment", "GymV21Environment-v0", "their_tasks:GymV26Environment-v0"],
)
def test_what_shimmy_registers_imports_nothing(monkeypatch: pytest.MonkeyPatch, plugins: Path, name: str) -> None:
    named: list[str] = []
    registry = {id: spec for id, spec in gymnasium.registry.items() if not id.startswith("GymV2")}
    monkeypatch.setattr("gymnasium.envs.registration.registry", registry)
    for version in ("GymV21", "GymV26"):
        gymnasium.register(f"{version}Environment-v0", lambda env_id: named.append(env_id))  # noqa: PLW0108 # pyright: ignore[reportArgumentType] - as above
    for vectorization in ("loop", "own"):
        given = {"id": name, "kwargs": {"env_id": "antigravity:CartPole-v1"}, "vectorization": vectorization}
        assert "write gym:ID" in refusal(given)
    assert named == []


def test_a_policy_is_checked_where_it_is_made() -> None:
    params = Params.model_validate(
        {"environment": "CartPole-v1", "policy": {"name": "custom", "builder": "subprocess:Popen"}}
    )
    with pytest.raises(InputError, match="has not allowed subprocess"):
        new_policy(params, SPACES)


def test_an_environments_file_is_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = ModuleType("seen")
    make = lambda xml_file: setattr(seen, "file", xml_file) or gymnasium.make("CartPole-v1")  # noqa: E731
    gymnasium.register("Model-v0", make)  # pyright: ignore[reportArgumentType] - asks for a function of any arguments
    monkeypatch.setattr("gymnasium.envs.registration.registry", gymnasium.registry)
    for path in ("/etc/passwd", "../../../../../etc/passwd", "file:///etc/passwd"):
        assert "ROLECALL_DATA_ROOTS" in refusal({"id": "Model-v0", "kwargs": {"xml_file": path}})
    assert "is not expanded" in refusal({"id": "Model-v0", "kwargs": {"xml_file": "~/ant.xml"}})
    creation.make(Environment(id="Model-v0", kwargs={"xml_file": str(tmp_path / "ant.xml")}))
    assert seen.file == str(tmp_path / "ant.xml")
    creation.make(Environment(id="Model-v0", kwargs={"xml_file": "ant.xml"}))
    assert seen.file == "ant.xml"


def test_a_plugin_that_leaves_is_broken_and_nothing_else_is(plugins: Path) -> None:
    (plugins / "leaving.py").write_text("raise SystemExit('bye')\n")
    sys.path.insert(0, str(plugins))
    catalogue = load([EntryPoint("leaving", "leaving:WORKLOAD", GROUP)])
    assert catalogue.broken == {"leaving": "SystemExit: bye"}
    with pytest.raises(InputError, match="leaving can't be imported on this node: SystemExit: bye"):
        check_builder(Builder(builder="leaving:make"))
