"""All workloads have the same files; docs/architecture.md says what each is for."""

from pathlib import Path

import pytest

import rolecall.workloads
from rolecall.spec.role import Role

FOLDER = Path(rolecall.workloads.__file__).parent
SHARED = {"__init__", "params", "check", "model", "build", "remote", "training", "export"}
ROLES = {role.value.replace("-", "_") for role in Role}
OWN = {"preflight": {"worker"}}
"""Files of one workload alone. Add one only with its reason in docs/architecture.md; what is general is in the kit."""
WORKLOADS = sorted(path.parent.name for path in FOLDER.glob("*/__init__.py"))


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_workloads_folder_has_the_usual_files_and_no_others(workload: str) -> None:
    names = {path.stem for path in (FOLDER / workload).rglob("*.py")}
    assert names - SHARED - ROLES == OWN.get(workload, set())
    assert names >= {"__init__", "params"}
    assert workload == "preflight" or names >= {"check", "build", "training", "export"}, "it trains"
