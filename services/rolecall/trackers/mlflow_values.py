"""A job in MLflow's terms: parameters, tags, metrics and a status, within MLflow's limits. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from posixpath import normpath
from typing import Any

from rolecall.spec.api import COORDINATES, Checkpoint, Series
from rolecall.spec.comparison import leaves
from rolecall.spec.job import JobDocument
from rolecall.spec.state import JobState
from rolecall.spec.visible import cut

MAX_METRICS = 1000
"""The maximum number of metrics in a call, of all limits of MLflow's REST API."""
MAX_NAMES = 5000
"""The maximum number of metrics of a run. A job's code can report any number of names."""
MAX_PARAMS = 100
"""The maximum number of parameters or tags in a call."""
_MAX_NAME = 250
_MAX_PARAM = 6000
_MAX_TAG = 8000
_UNUSABLE = re.compile(r"[^\w.\- /]")
_STATUS = {
    JobState.QUEUED: "SCHEDULED",
    JobState.PLACED: "SCHEDULED",
    JobState.PAUSED: "SCHEDULED",
    JobState.RUNNING: "RUNNING",
    JobState.STOPPING: "RUNNING",
    JobState.SUCCEEDED: "FINISHED",
    JobState.FAILED: "FAILED",
    JobState.CANCELLED: "KILLED",
}


@dataclass(frozen=True, slots=True)
class Measurement:
    """A value of a metric."""

    name: str
    value: float
    at_ms: int
    """Milliseconds since the epoch."""
    step: int


def status(state: JobState) -> str:
    """MLflow's status of a run for a job in this state."""
    return _STATUS[state]


def params(job: JobDocument) -> dict[str, str]:
    """The parameters and role counts of a job, with dots between the names of nested fields."""
    found = dict(leaves({"roles": {role.value: count for role, count in job.roles.items()}}))
    found |= dict(leaves(job.params)) if job.params else {}
    return {usable(name): cut(value, _MAX_PARAM) for name, value in found.items()}


def tags(job: JobDocument, checkpoints: Sequence[Checkpoint]) -> dict[str, str]:
    """The other values that identify and describe a job: its labels as `label.NAME`, the rest as `rolecall.NAME`."""
    found = {
        "rolecall.workload": job.workload,
        "rolecall.state": job.state.value,
        "rolecall.attempts": str(len(job.attempts)),
        "rolecall.reason": job.reason or "",
        "rolecall.checkpoints": ", ".join(f"{one.manifest.step}" for one in checkpoints),
    }
    found |= {f"label.{name}": value for name, value in job.labels.items()}
    texts = {name: value for name, value in (job.result or {}).items() if not _is_number(value)}
    found |= {f"rolecall.{name}": value for name, value in leaves({"result": texts})} if texts else {}
    return {usable(name): cut(value, _MAX_TAG) for name, value in found.items()}


def measurements(job: JobDocument, series: Sequence[Series]) -> list[Measurement]:
    """The values that the workers reported, and the numbers of the result as `result.NAME`.

    The first worker's metrics have their own names, those of others start with the worker: `trainer-1/loss`.
    """
    # Workers of one role report the same metrics. If those of several roles report, the lowest rank names the main one.
    main = min(series, key=lambda one: one.rank).role if series else None
    found: list[Measurement] = []
    for one in series:
        prefix = "" if one.role == main and one.role_rank == 0 else f"{one.role}-{one.role_rank}/"
        for point in one.points:
            at_ms = _milliseconds(point.get("at"), job.started_at or job.created_at)
            found += [
                Measurement(usable(f"{prefix}{name}"), value, at_ms, point["step"])
                for name, value in _numbers(point).items()
                if name not in COORDINATES
            ]
    if job.ended_at is not None:
        at_ms = _milliseconds(None, job.ended_at)
        numbers = _numbers(job.result or {})
        found += [Measurement(usable(f"result.{name}"), numbers[name], at_ms, job.progress.step) for name in numbers]
    return found


def usable(name: str) -> str:
    """`name` as MLflow accepts it: without other characters than its own, and not too long.

    A changed name ends with a hash of the original one, so that different names stay different.
    """
    legal = _UNUSABLE.sub("_", name)
    if normpath(legal) != legal or legal.startswith((".", "/")):
        # MLflow refuses what is not a path below a folder.
        legal = legal.replace("/", "_").strip(".")
    if legal == name and 0 < len(name) <= _MAX_NAME:
        return name
    return f"{legal[: _MAX_NAME - 9]}-{sha256(name.encode()).hexdigest()[:8]}"


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in values.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _milliseconds(at: str | None, otherwise: datetime) -> int:
    # MLflow refuses negative times, and a job's code can report any time.
    return max(0, round((otherwise if at is None else datetime.fromisoformat(at)).timestamp() * 1000))
