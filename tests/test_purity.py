"""Pure modules: what says that it is pure is in the import contract, and reads neither a clock nor random numbers.

The contract knows imports alone, and `datetime` has both values and a clock.
"""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SERVICES = ROOT / "services"


def _listed() -> dict[str, Path]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (pure,) = (one for one in contracts if one["name"].startswith("decisions are pure"))
    return {name: SERVICES / f"{name.replace('.', '/')}.py" for name in pure["source_modules"]}


def _reads(source: str) -> Iterator[str]:
    """The calls and references that give another value each time."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            owner, _, name = ast.unparse(node).rpartition(".")
            is_clock = owner.rpartition(".")[2] in {"datetime", "date"} and name in {"now", "utcnow", "today"}
            if is_clock or owner in {"time", "random", "secrets", "uuid"}:
                yield f"line {node.lineno}: {owner}.{name}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"open", "input"}:
            yield f"line {node.lineno}: {node.func.id}"


def test_pure_modules_read_no_clock_and_no_random_numbers() -> None:
    found = [f"{name}, {hit}" for name, path in _listed().items() for hit in _reads(path.read_text())]
    assert found == []


def test_what_says_that_it_is_pure_is_in_the_contract() -> None:
    says = set[str]()
    for path in SERVICES.rglob("*.py"):
        source = path.read_text()
        if "Pure" in source and " Pure" in (ast.get_docstring(ast.parse(source)) or ""):
            says.add(".".join(path.relative_to(SERVICES).with_suffix("").parts))
    assert says - _listed().keys() == set()


def test_reads_of_a_clock_are_found() -> None:
    source = (
        "import datetime as d, random\nd.datetime.now()\nstart = datetime.now\nrandom.random()\nopen('x')\nself.now()"
    )
    assert len(list(_reads(source))) == 4
