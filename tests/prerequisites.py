"""The needs of tests from the machine. Without these they are skipped, but fail in CI."""

import os
import shutil
import subprocess
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


def require_programs(*names: str) -> None:
    """Require programs in the PATH."""
    if missing := [name for name in names if not shutil.which(name)]:
        unavailable(f"{' and '.join(missing)}: not installed; .ci/prepare installs what tests need")


def require_namespaces(*flags: str) -> None:
    """Require root, and a machine where it can make namespaces of the kinds of `unshare`'s flags, such as `--net`."""
    require_root("namespaces need root")
    require_programs("unshare")
    made = subprocess.run(["unshare", *flags, "true"], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        unavailable(f"namespaces can't be made here: {made.stderr.strip()}")
