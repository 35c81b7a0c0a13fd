"""The changes of a job by `PATCH /jobs/{id}`. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rolecall.master.field_errors import FieldError, field_error
from rolecall.master.store.records import JobRecord
from rolecall.spec.job import JobRequest, JobUpdate
from rolecall.spec.labels import MAX_LABELS


@dataclass(frozen=True, slots=True)
class Changes:
    """The fields to store, and the event of each change."""

    values: Mapping[str, Any]
    """The new name and priority, if they change."""
    set_labels: Mapping[str, str]
    removed_labels: tuple[str, ...]
    messages: tuple[str, ...]


def changes(job: JobRecord, labels: Mapping[str, str], request: JobUpdate) -> Changes:
    """The changes of a job with these labels, without values that stay the same."""
    given = request.model_fields_set
    asked = {name: getattr(request, name) for name in ("name", "priority") if name in given}
    asked = {name: JobRequest.model_fields[name].default if value is None else value for name, value in asked.items()}
    values = {name: value for name, value in asked.items() if value != getattr(job, name)}
    wanted = request.labels
    if wanted is None:
        wanted = dict.fromkeys(labels) if "labels" in given else {}
    fresh = {name: value for name, value in wanted.items() if value is not None and labels.get(name) != value}
    removed = tuple(name for name, value in wanted.items() if value is None and name in labels)
    messages = (
        *(f"{name} changed from {getattr(job, name)!r} to {value!r}" for name, value in values.items()),
        *(f"label {name} set to {value!r}" for name, value in fresh.items()),
        *(f"label {name} removed" for name in removed),
    )
    return Changes(values, fresh, removed, messages)


def check_label_count(labels: Mapping[str, str], change: Changes) -> list[FieldError]:
    """The problem of a job with these labels if the change adds some and they would be too many."""
    after = (labels.keys() | change.set_labels.keys()) - set(change.removed_labels)
    if len(after) <= max(MAX_LABELS, len(labels)):  # A job of an earlier release can have more.
        return []
    message = f"the job would have {len(after)} labels; at most {MAX_LABELS} are allowed"
    return [field_error("labels", message, change.set_labels, f"up to {MAX_LABELS} labels; null removes a label")]
