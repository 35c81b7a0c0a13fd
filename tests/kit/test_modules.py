"""Every module of the kit has a test file of its own, in the same place if the test needs no workload."""

from pathlib import Path

import rolecall.kit

KIT, TESTS = Path(rolecall.kit.__file__).parent, Path(__file__).parent
WITH_WORKLOADS = {Path("environments/legacy_gym.py"): "workloads/reinforce/test_legacy_gym.py"}


def test_the_tests_mirror_the_kit() -> None:
    modules = {path.relative_to(KIT) for path in KIT.rglob("*.py") if path.name != "__init__.py"}
    tested = {path.relative_to(TESTS).with_name(path.name.removeprefix("test_")) for path in TESTS.rglob("test_*.py")}
    assert sorted(map(str, modules - tested - WITH_WORKLOADS.keys())) == []
    assert all((TESTS.parent / name).is_file() for name in WITH_WORKLOADS.values())
