"""The check of a path such as `params.micro_batches` against the schema of a workload's jobs. Pure."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from rolecall.cli.exits import CommandError, Exit
from rolecall.spec.api import WorkloadDocument
from rolecall.spec.job import JobRequest
from rolecall.spec.json_schema import choices
from rolecall.spec.similar import most_similar

_Schema = Mapping[str, Any]
_JOB: _Schema = JobRequest.model_json_schema()


def check_path(path: str, workload: WorkloadDocument) -> None:
    """Raise `CommandError` unless a job of this workload can have a value at `path`."""
    first, *rest = path.split(".")
    if first not in _JOB["properties"]:
        raise _refusal(path, "a job", first, _JOB["properties"])
    if first == "roles" and rest and rest[0] not in workload.roles:
        raise _refusal(path, workload.name, rest[0], workload.roles, kind="role")
    root = workload.params if first == "params" else _JOB
    schemas = list(choices(root, root if first == "params" else _JOB["properties"][first]))
    owner = first
    for part in rest:
        inner = [one for schema in schemas for one in _inside(schema, part)]
        if not inner:
            raise _refusal(path, owner, part, {name for schema in schemas for name in schema.get("properties", ())})
        schemas = [choice for one in inner for choice in choices(root, one)]
        owner = f"{owner}.{part}"


def _inside(schema: _Schema, part: str) -> Iterator[_Schema]:
    """The schema of the field or entry `part`, if the value can have it."""
    if part in schema.get("properties", {}):
        yield schema["properties"][part]
    elif schema.get("type", "object") == "object":
        others = schema.get("additionalProperties", True)
        if others is not False:
            yield {} if others is True else others
    elif schema["type"] == "array" and part.isdecimal():
        fixed = schema.get("prefixItems", ())
        yield from fixed[int(part) : int(part) + 1] if fixed else [schema.get("items", {})]


def _refusal(path: str, owner: str, part: str, names: Collection[str], kind: str = "field") -> CommandError:
    if not names:
        return CommandError(Exit.USAGE, f"--set {path}: {owner} has no {kind} {part!r}; set {owner} as a whole")
    near = most_similar(part, map(str, names))
    hint = f"; did you mean {near!r}?" if near else ";"
    valid = ", ".join(sorted(map(str, names)))
    return CommandError(Exit.USAGE, f"--set {path}: {owner} has no {kind} {part!r}{hint} valid: {valid}")
