"""One name, one meaning: no two packages have public classes with the same name.

A workload is independent of the others, so its classes can have the names of theirs.
"""

import ast
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

SERVICES = Path(__file__).parent.parent / "services/rolecall"
KEPT = {
    "Params": "the base class, and each workload's subclass",
    "EarlyStopping": "the shared parameters, and a workload's subclass",
    "Ppo": "parameters of `reinforce`, and the algorithm of the kit that they describe",
    "Reinforce": "parameters of `reinforce`, and the algorithm of the kit that they describe",
}
"""Names of several classes, each with the reason."""


def _duplicates(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """The names of several classes, with their files."""
    files: dict[str, list[str]] = defaultdict(list)
    for path, source in sources.items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].append(path)
    return {name: paths for name, paths in files.items() if not _are_independent(paths)}


def _are_independent(paths: list[str]) -> bool:
    """Return whether there is one class, or at most one in each workload and none elsewhere."""
    return len(paths) == 1 or len({_workload(path) for path in paths} - {""}) == len(paths)


def _workload(path: str) -> str:
    parts = path.split("/")
    return parts[1] if parts[0] == "workloads" and len(parts) > 2 else ""


def test_each_class_has_a_name_of_its_own() -> None:
    sources = {str(path.relative_to(SERVICES)): path.read_text() for path in sorted(SERVICES.rglob("*.py"))}
    found = _duplicates(sources)
    assert {name: paths for name, paths in found.items() if name not in KEPT} == {}


def test_duplicates_are_found() -> None:
    sources = {
        "master/lifecycle.py": "class Step: ...\nclass _Private: ...",
        "spec/timeline.py": "class Step: ...\nclass _Private: ...",
        "kit/loop.py": "class Shard: ...",
        "workloads/one/params.py": "class Training: ...\nclass Twice: ...",
        "workloads/one/training.py": "class Twice: ...",
        "workloads/two/training.py": "class Training: ...\nclass Shard: ...",
    }
    assert _duplicates(sources).keys() == {"Step", "Shard", "Twice"}
