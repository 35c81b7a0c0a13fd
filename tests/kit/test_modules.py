"""Every module of the kit has a test file of its own, in the same place."""

from pathlib import Path

import rolecall.kit

KIT, TESTS = Path(rolecall.kit.__file__).parent, Path(__file__).parent


def test_the_tests_mirror_the_kit() -> None:
    modules = {path.relative_to(KIT) for path in KIT.rglob("*.py") if path.name != "__init__.py"}
    tested = {path.relative_to(TESTS).with_name(path.name.removeprefix("test_")) for path in TESTS.rglob("test_*.py")}
    assert sorted(map(str, modules - tested)) == []
