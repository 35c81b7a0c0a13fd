"""Stacks that compose brings up for real: images built on the spot, containers, networks, volumes."""

import os
import shutil
import subprocess
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.deploy.manifests import ROOT
from tests.prerequisites import unavailable
from tests.running import Running

from rolecall.spec.role import Role

PROJECT = "rolecall-test"
VERSION = "test"
BASE_IMAGE = os.environ.get("BASE_IMAGE", "")
"""The base of the images; `.ci/engine` makes one where none can be pulled."""
FILE = ROOT / "compose.yaml"
TAIL = 200
START_S = 120


@cache
def engine() -> None:
    """Skip without Docker, compose and buildx; fail in CI, where `.ci/run` sees to them."""
    if not shutil.which("docker"):
        unavailable("docker is not installed")
    for command in (["info"], ["compose", "version"], ["buildx", "version"]):
        done = subprocess.run(["docker", *command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            unavailable(f"docker {' '.join(command)} fails: {done.stderr.strip()}")


def docker(*arguments: str | Path, check: bool = True, timeout: float = 300) -> str:
    """The output of `docker`; fails with its errors if it fails."""
    done = subprocess.run(
        ["docker", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=timeout, cwd=ROOT
    )
    if check and done.returncode != 0:
        pytest.fail(f"docker {' '.join(map(str, arguments))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def image(role: str) -> str:
    """The name of a role's image that the tests build."""
    return f"rolecall-{role}:{VERSION}"


def configuration(*files: Path, profiles: tuple[str, ...] = (), **variables: str) -> dict[str, Any]:
    """`docker compose config`: all files and variables resolved."""
    options = [option for file in files or (FILE,) for option in ("--file", str(file))]
    chosen = [option for profile in profiles for option in ("--profile", profile)]
    done = subprocess.run(
        ["docker", "compose", *options, *chosen, "config"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=_environment(variables),
    )
    assert not done.stderr, done.stderr
    return yaml.safe_load(done.stdout)


class Stack(Running):
    """One project of compose."""

    def __init__(self, variables: Mapping[str, str], *files: Path, project: str = PROJECT) -> None:
        self.project = project
        self.client = httpx.Client(timeout=30)
        self._variables = {"ROLECALL_VERSION": VERSION, **variables}
        self._files = [option for file in files or (FILE,) for option in ("--file", str(file))]
        self._label = f"label=com.docker.compose.project={project}"

    def compose(self, *arguments: str, timeout: float = 300, **variables: str) -> str:
        """The output of `docker compose`; fails with its errors if it fails."""
        done = subprocess.run(
            ["docker", "compose", "--project-name", self.project, *self._files, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            cwd=ROOT,
            env=_environment(self._variables | variables),
        )
        if done.returncode != 0:
            pytest.fail(
                f"docker compose {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
                f"{self.logs() if 'up' in arguments else ''}"
            )
        return done.stdout

    def up(self, *arguments: str, **options: Any) -> None:
        """Bring it up, or in line with the arguments, and wait until all of it is healthy and has registered.

        `options` are what `compose` takes.
        """
        self.compose("up", "--detach", "--wait", "--no-build", *arguments, **options)
        self.find_master()
        missing = [role for role in Role if len(self.nodes(role)) < len(self.containers(role))]
        assert not missing, f"containers are healthy before their nodes have registered: {missing}"
        deadline = time.monotonic() + START_S
        while not all(len(self.nodes(role)) == len(self.containers(role)) for role in Role):
            assert time.monotonic() < deadline, f"nodes without a container are alive:\n{self.logs()}"
            time.sleep(0.2)

    def down(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """Take it down; return what was there still before its volumes were deleted, and what is after."""
        self.client.close()
        self.compose("--profile", "*", "down")
        kept = self.leftovers()
        self.compose("--profile", "*", "down", "--volumes")
        return kept, self.leftovers()

    def remove(self) -> None:
        """Remove what an interrupted run may have left of the project; its containers need not be asked to stop."""
        for container in self.leftovers().get("container", []):
            docker("rm", "--force", container)
        self.compose("--profile", "*", "down", "--volumes", "--remove-orphans")

    def find_master(self) -> None:
        """Set the master's published address; a container that starts again has another port."""
        address = self.compose("port", "master", "8080").strip()
        self.client.base_url = httpx.URL(f"http://{address}")
        self.client.headers["Authorization"] = f"Bearer {self.token}"

    @property
    def token(self) -> str:
        """The users' token, which the stack made itself."""
        return self.compose("exec", "-T", "master", "cat", "/run/secrets/user/token")

    def containers(self, service: str) -> list[str]:
        """The names of a service's containers."""
        names = docker("ps", "--filter", self._label, "--format", "{{.Names}}").split()
        return sorted(name for name in names if name.startswith(f"{self.project}-{service}-"))

    def nodes(self, role: str) -> dict[str, dict[str, Any]]:
        """The nodes of a role that live and take workers, by name."""
        found = self.client.get("/nodes").raise_for_status().json()["nodes"]
        return {
            one["spec"]["name"]: one
            for one in found
            if one["spec"]["role"] == role and one["alive"] and not one["draining"]
        }

    def logs(self) -> str:
        """The end of what every container printed."""
        options = ("--no-color", "--tail", str(TAIL))
        return docker("compose", "--project-name", self.project, "logs", *options, check=False, timeout=60)

    def leftovers(self) -> dict[str, list[str]]:
        """The resources of the project that still exist."""
        kinds = {"container": ["ps", "--all"], "network": ["network", "ls"], "volume": ["volume", "ls"]}
        return {
            kind: found
            for kind, command in kinds.items()
            if (found := docker(*command, "--quiet", "--filter", self._label).split())
        }


@contextmanager
def running_stack(project: str = PROJECT, **variables: str) -> Generator[Stack]:
    """The stack of `compose.yaml`, up; when left it is taken down, and nothing of it may be left."""
    stack = Stack({"PUBLISH": "127.0.0.1:", **variables}, project=project)
    stack.remove()
    try:
        stack.up()
        yield stack
    finally:
        kept, left = stack.down()
    assert set(kept) == {"volume"}, f"`docker compose down` left {kept}"
    assert left == {}, f"`docker compose down --volumes` left {left}"


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Only what a test chose: what a developer's shell sets for a stack of his own must not change it."""
    ours = ("PATH", "HOME", "DOCKER_HOST", "DOCKER_CONFIG", "XDG_RUNTIME_DIR")
    base = {"BASE_IMAGE": BASE_IMAGE} if BASE_IMAGE else {}
    return {name: os.environ[name] for name in ours if name in os.environ} | base | dict(variables)
