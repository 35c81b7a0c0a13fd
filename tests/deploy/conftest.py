"""The images that tests of containers share."""

import fcntl

import pytest
from tests.deploy.manifests import ROOT
from tests.deploy.stack import Stack, engine

BUILD_S = 1200


@pytest.fixture(scope="session")
def images() -> None:
    """All images, built from this tree, after the build that `.ci/run` began."""
    engine()
    lock = ROOT / "build" / "images.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        Stack({}).compose("build", timeout=BUILD_S)
