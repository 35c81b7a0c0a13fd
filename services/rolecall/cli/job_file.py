"""A job's file in JSON or YAML, and changes to the job: `--set PATH=VALUE`."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.yaml_file import load_yaml
from rolecall.spec.errors import InputError
from rolecall.spec.json_errors import json_problem, place

Job = dict[str, Any]
"""The body of `POST /jobs`."""
File = Annotated[
    str,
    typer.Argument(
        metavar="FILE|-",
        help="File with the body of `POST /jobs`: YAML if it ends with .yaml or .yml, otherwise JSON; - for stdin. "
        "Nodes resolve relative paths in the job against their working directory: the folder in which you started "
        "`rolecall local`.",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Replace a field of the job, such as params.batch_size=64. The value is JSON or text. Can be repeated.",
    ),
]


def read_job(file: str) -> bytes:
    """The content of the file, as JSON."""
    try:
        body = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise CommandError(Exit.USAGE, f"can't read {file}: {error.strerror}") from None
    is_yaml = not body.lstrip().startswith((b"{", b"[")) if file == "-" else Path(file).suffix in {".yaml", ".yml"}
    if not is_yaml:
        return body
    try:
        return json.dumps(load_yaml(body)).encode()
    except InputError as error:
        raise CommandError(Exit.USAGE, f"{file} is not valid YAML: {error}") from None


def parse_job(file: str, body: bytes) -> Job:
    """The job in the content of `file`."""
    try:
        job = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CommandError(Exit.USAGE, f"{file} is not JSON: {_why(error)}") from None
    if not isinstance(job, dict):
        example = "`rolecall workloads NAME --example` prints one"
        raise CommandError(Exit.USAGE, f"{file} is not a job; it must be a JSON object: {example}")
    return cast(Job, job)


def changed_job(file: str, sets: Sequence[str]) -> bytes:
    """The job in the file, with the changes of `--set`.

    Without changes, it is as in a JSON file, so that the master checks what the user wrote.
    """
    body = read_job(file)
    job = parse_job(file, body)
    if not sets:
        return body
    for path, values in map(parse_setting, sets):
        job = with_value(job, path, single_value(path, values))
    return json.dumps(job).encode()


def parse_setting(text: str) -> tuple[str, tuple[Any, ...]]:
    """The path and the values of `PATH=VALUE,…`. A value is JSON; what is not JSON is text."""
    path, equals, values = text.partition("=")
    if not equals or not all(path.split(".")):
        raise CommandError(
            Exit.USAGE, f"--set {text}: write a path and its values, such as params.batch_size=64 or roles.stage=2"
        )
    return path, tuple(_parse_values(path, values))


def single_value(path: str, values: Sequence[Any]) -> Any:
    """The value of a setting of a single job."""
    if len(values) > 1:
        raise CommandError(
            Exit.USAGE,
            f"--set {path}: one job has one value, but {len(values)} are given; `rolecall sweep` runs a job for each; "
            "a list needs brackets, and text with commas needs quotes",
        )
    return values[0]


def with_value(job: Mapping[str, Any], path: str, value: Any) -> Job:
    """A copy of the job with `value` at `path`. Objects on the path that are missing or null are created."""
    return _with_value(job, path.split("."), value, ())


def _parse_values(path: str, text: str) -> list[Any]:
    values, begin = list[Any](), 0
    while begin <= len(text):
        value, end = _parse_value(path, text, begin)
        values.append(value)
        begin = end + 1
    return values


def _parse_value(path: str, text: str, begin: int) -> tuple[Any, int]:
    """The value that starts at `begin`, and the position of the comma after it or of the end."""
    try:
        value, end = _DECODER.raw_decode(text, begin)
        if end == len(text) or text[end] == ",":
            return value, end
        why = "there must be a comma between two values"
    except (ValueError, RecursionError) as error:
        why = _why(error, is_file=False)
    if text[begin : begin + 1] in {"[", "{", '"'}:
        raise CommandError(Exit.USAGE, f"--set {path}: {text[begin:]} is not JSON: {why}")
    end = text.find(",", begin)
    end = len(text) if end < 0 else end
    if not (value := text[begin:end]):
        raise CommandError(Exit.USAGE, f'--set {path}: a value is missing; for empty text, write ""')
    return value, end


def _why(error: Exception, *, is_file: bool = True) -> str:
    """The reason why a text is not JSON, and its place in a file."""
    if isinstance(error, json.JSONDecodeError):
        if is_file and error.doc.strip() and error.doc.lstrip()[0] not in _FIRST_CHARACTERS:
            return "it doesn't begin with {; if it is YAML, rename it to end with .yaml or .yml"
        where = f"{place(error.doc, error.pos)}: " if is_file else ""
        return where + json_problem(error.msg, error.doc, error.pos)
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text; save it as UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return "a number has too many digits" if str(error).startswith("Exceeds the limit") else str(error)


def _no_constant(name: str) -> Any:
    """NaN and infinities are no JSON, so that they are text."""
    raise ValueError(f"{name} is not JSON")


_FIRST_CHARACTERS = "{[/"
"""Of JSON objects and lists, and of comments in the style of JavaScript."""
_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _with_value(target: Any, parts: Sequence[str], value: Any, above: tuple[str, ...]) -> Any:
    if not parts:
        return value
    first, rest, path = parts[0], parts[1:], (*above, parts[0])
    if isinstance(target, list):
        entries = list(cast(list[Any], target))
        index = _index(entries, path)
        return [*entries[:index], _with_value(entries[index], rest, value, path), *entries[index + 1 :]]
    if target is None:
        target = {}
    if not isinstance(target, dict):
        owner = ".".join(above)
        raise CommandError(
            Exit.USAGE, f"--set {'.'.join(path)}: {owner} is {json.dumps(target):.80}, which has no fields; set {owner}"
        )
    fields = cast(dict[str, Any], target)
    return fields | {first: _with_value(fields.get(first), rest, value, path)}


def _index(entries: Sequence[Any], path: tuple[str, ...]) -> int:
    if path[-1].isdecimal() and int(path[-1]) < len(entries):
        return int(path[-1])
    owner = ".".join(path[:-1])
    valid = f"{owner}.0 to {owner}.{len(entries) - 1}" if entries else f"{owner}=[…]"
    raise CommandError(Exit.USAGE, f"--set {'.'.join(path)}: {owner} has {len(entries)} entries; valid: {valid}")
