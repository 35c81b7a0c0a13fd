"""What tests need of the machine. Without it they are skipped, but fail in CI."""

import os
from typing import NoReturn

import pytest

from rolecall import landlock


def unavailable(reason: str) -> NoReturn:
    """Skip, but fail in CI."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


def require_landlock() -> None:
    """Require a kernel with Landlock."""
    try:
        landlock.version()
    except OSError as error:
        unavailable(f"this kernel has no Landlock: {error}")


def require_root(reason: str) -> None:
    """Require root, which `reason` explains."""
    if os.geteuid() != 0:
        unavailable(reason)
