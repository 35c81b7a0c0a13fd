"""Each log call of the services has the name of its event, so that a search finds it whatever the text says.

If the text names a job, the record has it too.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SERVICES = Path(__file__).parent.parent / "services/rolecall"
LOG_CALL = re.compile(r"_LOG\.(debug|info|warning|error|exception|critical|log)")
EVENT = re.compile(r"[a-z]+(_[a-z]+)*")


def _has_event(call: ast.expr, helpers: set[str]) -> bool:
    """True for a call of `about`, or of a helper that calls it, with the name of an event."""
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


def _has_job(call: ast.expr, with_job: set[str]) -> bool:
    """True for a call of `about` with a job, or of a helper `with_job`."""
    if not isinstance(call, ast.Call):
        return False
    name = ast.unparse(call.func).removeprefix("self.")
    # Unpacked fields come from the key of a worker, which has the job.
    return name in with_job or (name == "about" and any(keyword.arg in {"job", None} for keyword in call.keywords))


def _incomplete(source: str) -> Iterator[tuple[int, str]]:
    """The lines of the log calls without an event, or with a job in the text but not in the record, and what to add."""
    nodes = list(ast.walk(ast.parse(source)))
    returned = {
        node.name: statement.value
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.name.startswith("_about")
        for statement in ast.walk(node)
        if isinstance(statement, ast.Return) and statement.value and "about(" in ast.unparse(statement.value)
    }
    with_job = {name for name, value in returned.items() if _has_job(value, set())}
    assigned = sorted((node for node in nodes if isinstance(node, ast.Assign)), key=lambda node: node.lineno)

    def value(expression: ast.expr, line: int) -> ast.expr:
        """The expression, or what was assigned last to the variable before this line."""
        name = ast.unparse(expression)
        earlier = [node.value for node in assigned if node.lineno < line and ast.unparse(node.targets[0]) == name]
        return earlier[-1] if earlier and isinstance(expression, ast.Name) else expression

    for node in nodes:
        if isinstance(node, ast.Call) and LOG_CALL.fullmatch(ast.unparse(node.func)):
            extra = next((value(one.value, node.lineno) for one in node.keywords if one.arg == "extra"), None)
            if extra is None or not _has_event(extra, {*returned}):
                yield node.lineno, "extra=about(<event>, ...)"
                continue
            names_job = any("job %s" in ast.unparse(value(one, node.lineno)) for one in node.args[:2])
            if names_job and not _has_job(extra, with_job):
                yield node.lineno, "about(..., job=<job>)"


def test_log_calls_have_the_name_of_their_event_and_the_job_of_their_text() -> None:
    found: list[str] = []
    for path in SERVICES.rglob("*.py"):
        source = path.read_text()
        if "_LOG." in source:
            found += [f"{path.relative_to(SERVICES)}:{line}: write {what}" for line, what in _incomplete(source)]
    assert found == []


def test_log_calls_without_an_event_or_a_job_are_found() -> None:
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
def _about_file(path): return about("file_read")
_LOG.info("job %s", job, extra=about("line_read"))
_LOG.info("job %s", job, extra=about("line_read", job=job))
_LOG.info("job %s", job, extra=about("line_read", **key._asdict()))
_LOG.info("job %s", job, extra=_about_line(job))
_LOG.info("job %s", job, extra=_about_file(job))
text = "a file of job %s"
_LOG.info(text, job, extra=fields)
fields = about("line_written", job=job)
_LOG.log(level, text, job, extra=fields)
text = "%d jobs"
_LOG.info(text, count, extra=about("jobs_read"))
"""
    assert [line for line, _ in _incomplete(source)] == [3, 4, 5, 10, 12, 16, 18]
