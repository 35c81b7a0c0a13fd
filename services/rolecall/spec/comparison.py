"""Differences of jobs, for the page and for the command. Pure."""

import json
import re
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, cast

from rolecall.spec.job import JobDocument
from rolecall.spec.json_schema import chosen_params
from rolecall.spec.visible import cut

OTHER_WORKLOADS = (
    "The jobs have different workloads: parameters that only some of them have are listed if someone has set them."
)
_FIELDS = ("workload", "roles", "resources", "params", "result")
_PARAMS = "params."
_LONG_PATH = 200
_LEAST_PART_CHARS = 12
_PLAIN_KEY = re.compile(r'[^."]+')


@dataclass(frozen=True, slots=True)
class Row:
    """A field in which jobs differ, and its value in each job; None where a job lacks it."""

    name: str
    values: list[str | None]


def differences(jobs: Sequence[JobDocument], schemas: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    """The fields of request and result in which the jobs differ.

    `schemas` has the parameters of each workload that is installed. If the jobs have different workloads, a parameter
    that only some of them have is listed if a user has set it.
    """
    found: defaultdict[str, list[str | None]] = defaultdict(lambda: [None] * len(jobs))
    for place, job in enumerate(jobs):
        fields: dict[str, Any] = {
            "workload": job.workload,
            "roles": {role.value: count for role, count in job.roles.items()},
            "params": job.params,
        }
        if job.resources:
            own = {
                role.value: one.model_dump(exclude_defaults=True, exclude={"busy"})
                for role, one in job.resources.items()
            }
            fields["resources"] = own
        if job.result:
            fields["result"] = job.result
        for name, value in leaves(fields):
            found[name][place] = value
    rows = [Row(name, values) for name, values in found.items() if len(set(values)) > 1]
    rows.sort(key=lambda row: _FIELDS.index(row.name.partition(".")[0]))
    if have_one_workload(jobs):
        return rows
    chosen = {name for job in jobs for name in _chosen(job, schemas.get(job.workload))}
    return [row for row in rows if not row.name.startswith(_PARAMS) or _is_comparable(row) or _is_in(row.name, chosen)]


def have_one_workload(jobs: Sequence[JobDocument]) -> bool:
    """Return whether all jobs have the same parameters."""
    return len({job.workload for job in jobs}) <= 1


def _chosen(job: JobDocument, schema: Mapping[str, Any] | None) -> Iterator[str]:
    """The paths of the parameters that differ from their defaults."""
    chosen = job.params if schema is None else chosen_params(schema, job.params)
    return (name for name, _ in leaves({"params": chosen})) if chosen else iter(())


def _is_comparable(row: Row) -> bool:
    """Return whether several jobs have the field, with different values."""
    return len({value for value in row.values if value is not None}) > 1


def _is_in(name: str, chosen: Container[str]) -> bool:
    """Return whether a path or the beginning of one is among `chosen`."""
    return any(part in chosen for part in accumulate(name.split("."), "{}.{}".format))


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The values in nested objects, with their paths: text as it is, other values as JSON.

    In a path, a key that is empty or has a dot is in quotes, so that each path names one value.
    An object whose path is long is one value, because the path of a value starts with those of all objects around it.
    """
    if isinstance(value, Mapping) and value and len(name) <= _LONG_PATH:
        for key, one in cast("Mapping[str, Any]", value).items():
            part = key if _PLAIN_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)
            yield from leaves(one, f"{name}.{part}" if name else part)
    else:
        yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def excerpts(texts: Sequence[str | None], chars: int) -> list[str | None]:
    """The texts, and of those with more than `chars` characters the parts in which they differ from others.

    The parts have about `chars` characters together, or a few for each of many differences. An ellipsis stands for what
    is left out.
    """
    distinct = sorted({text for text in texts if text is not None})
    # In sorted order, any two texts begin to differ where two adjacent ones of those between them do.
    points = sorted({_difference(*pair) for pair in pairwise(distinct)})
    if not points or points[-1] < chars // 2:
        return [text and cut(text, chars) for text in texts]
    size = max(_LEAST_PART_CHARS, chars // len(points) - 2)
    parts = list[tuple[int, int]]()
    for point in points:
        begin, end = max(0, point - size // 2), point + (size + 1) // 2
        if parts and begin <= parts[-1][1]:
            begin, _ = parts.pop()
        parts.append((begin, end))
    return [text if text is None or len(text) <= chars else _parts_of(text, parts) for text in texts]


def _difference(first: str, second: str) -> int:
    """The place of the first character in which two different texts differ."""
    # By halves, because comparisons of slices are faster than those of characters in Python.
    equal, most = 0, min(len(first), len(second))
    while equal < most:
        middle = (equal + most + 1) // 2
        if first[equal:middle] == second[equal:middle]:
            equal = middle
        else:
            most = middle - 1
    return equal


def _parts_of(text: str, parts: Sequence[tuple[int, int]]) -> str:
    """The parts of a text from the first to the second place of each, with an ellipsis for what is between them."""
    own = [(begin, end) for begin, end in parts if begin <= len(text)] or [(0, 0)]
    shown = "…".join(text[begin:end] for begin, end in own)
    return f"{'…' if own[0][0] else ''}{shown}{'…' if len(text) > own[-1][1] else ''}"
