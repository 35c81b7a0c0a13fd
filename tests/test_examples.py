"""The examples of workloads use the public API alone, and the one with parameter servers is short."""

import ast
from collections.abc import Iterator
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"
PUBLIC = "rolecall.kit"
TESTING = "rolecall.testing"


def _internal_imports(path: Path) -> Iterator[str]:
    """The imports from Rolecall that are not for authors of workloads."""
    allowed = (PUBLIC, TESTING) if path.name.startswith("test_") else (PUBLIC,)
    for node in ast.walk(ast.parse(path.read_text())):
        modules = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for module in modules:
            if f"{module}.".startswith("rolecall.") and not f"{module}.".startswith(
                tuple(f"{one}." for one in allowed)
            ):
                yield module


def test_examples_import_the_public_api_alone() -> None:
    paths = [path for folder in ("word2vec", "workload") for path in (EXAMPLES / folder).rglob("*.py")]
    assert {path.name for path in paths} >= {"trainer.py", "test_word2vec.py", "test_kmeans.py"}
    assert [(path.name, module) for path in paths for module in _internal_imports(path)] == []


def test_imports_of_internal_modules_are_found(tmp_path: Path) -> None:
    source = "import rolecall_word2vec\nimport rolecall.spec.role\nfrom rolecall import testing\n"
    source += "from rolecall.kit.job_loop import JobLoop\nfrom rolecall.testing import run_gang\n"
    workload, test = tmp_path / "trainer.py", tmp_path / "test_it.py"
    for path in (workload, test):
        path.write_text(source)
    assert list(_internal_imports(workload)) == ["rolecall.spec.role", "rolecall", "rolecall.testing"]
    assert list(_internal_imports(test)) == ["rolecall.spec.role", "rolecall"]


def test_a_workload_with_parameter_servers_has_at_most_150_lines() -> None:
    lines = [path.read_text().count("\n") for path in (EXAMPLES / "word2vec/rolecall_word2vec").glob("*.py")]
    assert 100 < sum(lines) <= 150
