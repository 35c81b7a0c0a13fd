"""The locks, which pip checks only for packages that they give hashes of."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCKS = sorted(ROOT.glob("requirements*.lock"))
PIN = re.compile(r"[\w.\[\]-]+==\S+(?: ; [^\\]+)?(?: --hash=sha256:[0-9a-f]{64})+")


def test_there_are_the_locks_of_development_images_their_builds_and_the_lowest_versions() -> None:
    assert [path.name for path in LOCKS] == [
        "requirements-build.lock",
        "requirements-lowest.lock",
        "requirements-runtime.lock",
        "requirements.lock",
    ]


def test_the_tools_that_build_the_wheel_are_locked() -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    locked = re.findall(r"^[\w.-]+(?===)", (ROOT / "requirements-build.lock").read_text(), re.MULTILINE)
    assert set(required) <= set(locked)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_each_package_has_one_version_and_its_hashes(lock: Path) -> None:
    whole = re.sub(r" \\\n +", " ", lock.read_text())
    entries = [line for line in whole.splitlines() if line and not line.lstrip().startswith("#")]
    assert len(entries) > 5
    assert not [entry for entry in entries if not PIN.fullmatch(entry)]
