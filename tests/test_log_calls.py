"""Each log call of the services has the name of its event, so that a search finds it whatever the text says."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SERVICES = Path(__file__).parent.parent / "services/rolecall"
LOG_CALL = re.compile(r"_LOG\.(debug|info|warning|error|exception|critical|log)")
EVENT = re.compile(r"[a-z]+(_[a-z]+)*")


def _has_event(call: ast.expr, helpers: set[str]) -> bool:
    """Whether the call is one of `about`, or of a helper that calls it, with the name of an event."""
    if not isinstance(call, ast.Call):
        return False
    name = ast.unparse(call.func).removeprefix("self.")
    match call.args[:1]:
        case [ast.Constant(value=str(event))]:
            return name in {"about", *helpers} and EVENT.fullmatch(event) is not None
        case [ast.JoinedStr()]:
            return name == "about"
        case _:
            return name in helpers


def _without_event(source: str) -> Iterator[int]:
    """The lines of the log calls without an event."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    helpers = {one.name for one in functions if one.name.startswith("_about") and "return about(" in ast.unparse(one)}
    variables = {
        ast.unparse(node.targets[0]): _has_event(node.value, helpers) for node in nodes if isinstance(node, ast.Assign)
    }
    for node in nodes:
        if isinstance(node, ast.Call) and LOG_CALL.fullmatch(ast.unparse(node.func)):
            extra = next((keyword.value for keyword in node.keywords if keyword.arg == "extra"), None)
            if extra is None or not (_has_event(extra, helpers) or variables.get(ast.unparse(extra))):
                yield node.lineno


def test_log_calls_have_the_name_of_their_event() -> None:
    found: list[str] = []
    for path in SERVICES.rglob("*.py"):
        source = path.read_text()
        if "_LOG." in source:
            found += [f"{path.relative_to(SERVICES)}:{line}" for line in _without_event(source)]
    assert found == [], "write extra=about(<event>, ...)"


def test_log_calls_without_an_event_are_found() -> None:
    source = """
def _about_line(key): return about("line_skipped", job=key)
_LOG.info("a")
_LOG.info("b", extra={"job": "a"})
_LOG.info("c", extra=about("Not a name"))
_LOG.info("d", extra=about("line_read"))
_LOG.info("e", extra=_about_line("a"))
fields = about("line_written")
_LOG.info("f", extra=fields)
_LOG.info("g", extra=others)
"""
    assert list(_without_event(source)) == [3, 4, 5, 10]
