"""In CI, no machine that lacks something hides tests."""

import os
import re
from pathlib import Path

import pytest
from tests.prerequisites import (
    require_landlock,
    require_namespaces,
    require_programs,
    require_root,
    unavailable,
)
from tests.volumes import mounted

from rolecall import landlock

SILENT = re.compile(r"pytest\.skip\(|mark\.skip|importorskip|xfail|skipTest|unittest\.skip")
TESTS = Path(__file__).parent
QUIET = {
    "gpu": "`make test-gpu` runs it, and reports what was skipped",
    "kit/test_meter.py": "one test needs a GPU",
    "test_main.py": "the kernel may have no IPv6, which nothing installs",
    "test_prerequisites.py": "names what it looks for",
    "workloads/reinforce/test_legacy_gym.py": "downloads packages, and the index may be away",
}
"""Files and folders whose tests may be skipped in CI as well, and why. None of these tests is about a protection."""


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


def test_a_missing_program(expected: type[BaseException]) -> None:
    require_programs("sh")
    with pytest.raises(expected, match="no-such-program: not installed"):
        require_programs("sh", "no-such-program")


def test_namespaces_that_can_not_be_made(expected: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(expected, match=r"can't be made here: unshare: .*--no-such-kind"):
        require_namespaces("--no-such-kind")


def test_no_test_is_skipped_on_its_own() -> None:
    found = [path.relative_to(TESTS) for path in TESTS.rglob("*.py") if SILENT.search(path.read_text())]
    silent = {"gpu" if path.parts[0] == "gpu" else str(path) for path in found} - {"prerequisites.py"}
    assert silent == QUIET.keys(), "use tests/prerequisites.py, so that a test fails in CI"


def test_ci_says_that_it_is_ci() -> None:
    """Without this variable, what is missing hides tests."""
    script = (TESTS.parent / ".ci" / "run").read_text()
    assert re.search(r"^  export CI=true$", script, re.MULTILINE)
