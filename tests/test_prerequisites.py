"""In CI, no machine that lacks something hides tests."""

import os
import re
from pathlib import Path

import pytest
from tests.prerequisites import require_landlock, require_root, unavailable
from tests.volumes import mounted

from rolecall import landlock

SILENT = re.compile(r"pytest\.skip\(|mark\.skip|importorskip")
TESTS = Path(__file__).parent
LOUD = (*(TESTS / "security").glob("*.py"), TESTS / "conftest.py", TESTS / "volumes.py", TESTS / "test_bad_input.py")
"""Files whose tests run everywhere in CI."""


@pytest.fixture(params=[("", pytest.skip.Exception), ("true", pytest.fail.Exception)], ids=["desk", "ci"])
def expected(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[BaseException]:
    value, exception = request.param
    monkeypatch.setenv("CI", value)
    return exception


def test_what_is_missing_skips_a_test_and_fails_it_in_ci(expected: type[BaseException]) -> None:
    with pytest.raises(expected, match="there is no such thing"):
        unavailable("there is no such thing")


def test_a_kernel_without_landlock(expected: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "_CREATE_RULESET", 0xFFFF)  # No system call has this number.
    with pytest.raises(expected, match=r"no Landlock: .*Function not implemented"):
        require_landlock()


def test_a_volume_that_can_not_be_mounted(expected: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(expected, match="can't be mounted"), mounted(tmp_path / "volume", size="no size"):
        pass


def test_another_user_than_root(expected: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(expected, match="mounting needs root"):
        require_root("mounting needs root")


@pytest.mark.parametrize("path", LOUD, ids=lambda path: path.name)
def test_no_test_of_the_protection_is_skipped_on_its_own(path: Path) -> None:
    assert not SILENT.findall(path.read_text())
