"""Every test has the loops in C."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rolecall.kit.native import library


@pytest.fixture(autouse=True)
def native(compiled_loops: Path) -> Iterator[None]:
    library.load(compiled_loops)
    yield
    library.load(library.LIBRARY)
