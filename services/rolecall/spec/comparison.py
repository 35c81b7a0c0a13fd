"""Differences of jobs, for the page and for the command. Pure."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolecall.spec.job import JobDocument

_LONG_PATH = 200


@dataclass(frozen=True, slots=True)
class Row:
    """A field in which jobs differ, and its value in each job; None where a job lacks it."""

    name: str
    values: list[str | None]


def differences(jobs: Sequence[JobDocument]) -> list[Row]:
    """The fields of request and result in which the jobs differ."""
    found: defaultdict[str, list[str | None]] = defaultdict(lambda: [None] * len(jobs))
    for place, job in enumerate(jobs):
        fields: dict[str, Any] = {
            "workload": job.workload,
            "roles": {role.value: count for role, count in job.roles.items()},
            "resources": {role.value: one.model_dump(exclude_none=True) for role, one in job.resources.items()},
            "params": job.params,
        }
        if job.result:
            fields["result"] = job.result
        for name, value in leaves(fields):
            found[name][place] = value
    return [Row(name, values) for name, values in found.items() if len(set(values)) > 1]


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The values in nested objects, with their paths: text as it is, other values as JSON.

    An object whose path is long is one value, because the path of a value starts with those of all objects around it.
    """
    if isinstance(value, Mapping) and value and len(name) <= _LONG_PATH:
        for key, one in value.items():  # pyright: ignore[reportUnknownVariableType] - JSON
            yield from leaves(one, f"{name}.{key}" if name else str(key))  # pyright: ignore[reportUnknownArgumentType]
    else:
        yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
