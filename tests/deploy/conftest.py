"""The images that tests of containers share."""

import pytest
from tests.deploy.stack import Stack, engine

BUILD_S = 1200


@pytest.fixture(scope="session")
def images() -> None:
    """All images, built from this tree."""
    engine()
    Stack({}).compose("build", timeout=BUILD_S)
