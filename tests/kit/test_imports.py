"""Tests of the kit import no workload. A case that needs one belongs below `tests/workloads`."""

import ast
from collections.abc import Iterator
from pathlib import Path

WORKLOADS = "rolecall.workloads"


def _imported_modules(tree: ast.AST) -> Iterator[str]:
    """The imported modules, also those of programs in string literals."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (one.name for one in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{one.name}" for one in names)
            case ast.Constant(value=str(text)) if WORKLOADS in text:
                yield from _imported_modules(_parsed(text))
            case _:
                pass


def _parsed(text: str) -> ast.AST:
    """A text as code; nothing if it is none."""
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module([], [])


def _workloads_in(source: str) -> list[str]:
    return [name for name in _imported_modules(ast.parse(source)) if f"{name}.".startswith(f"{WORKLOADS}.")]


def test_tests_of_the_kit_import_no_workload() -> None:
    folder = Path(__file__).parent
    paths = [path for path in folder.rglob("*.py") if path != Path(__file__)]
    found = {str(path.relative_to(folder)): _workloads_in(path.read_text()) for path in paths}
    assert {path: names for path, names in found.items() if names} == {}


def test_imports_of_workloads_are_found() -> None:
    source = (
        "import rolecall.workloads.rnn_lm\nfrom rolecall import workloads\nfrom rolecall.kit import loop\n"
        "def late():\n    from rolecall.workloads.reinforce.build import new_policy\n"
        "PROGRAM = 'from rolecall.workloads import catalogue'\nTEXT = 'all of rolecall.workloads'\n"
    )
    assert len(_workloads_in(source)) == 4
