"""The master that most tests call."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .harness import Client, on_master


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """The calls to a fresh master with the default settings of the tests, whose state is in `tmp_path`."""
    async with on_master(tmp_path) as client:
        yield client
