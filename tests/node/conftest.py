"""Fixtures for tests of the node."""

from pathlib import Path

import pytest
from tests.node.simulated_driver import SimulatedDriver, compile_driver


@pytest.fixture(scope="session")
def driver_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled library of the simulated driver."""
    return compile_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def driver(driver_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedDriver:
    """A machine with NVIDIA's driver, and so far without GPUs."""
    return SimulatedDriver(driver_library, tmp_path, monkeypatch)
