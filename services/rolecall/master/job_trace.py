"""The runs of a job as spans of an OpenTelemetry trace. Pure.

A trace is sent when its job ends. A user can retry an ended job, which then ends again: each of these *runs* has a
root span of its own in the job's trace. Ids derive from the job, so that spans that are sent twice, because a master
ended in between, are the same.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from itertools import pairwise

from rolecall.master.store.records import AttemptSummary, CheckpointRecord, EventRecord, JobRecord, WorkerRecord
from rolecall.spec.redaction import redact_text
from rolecall.spec.state import JobState

TRACE = "trace"
"""The kind of the event that a trace was sent."""
MAX_NOTES = 128
"""The maximum number of notes of a span, as in OpenTelemetry's SDK; the newest ones are kept."""
_MAX_NODES = 64
_STATES = frozenset(JobState)
_ENDED = frozenset(state for state in JobState if state.ended)
Attribute = str | int | float | Sequence[str]


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened during a span; an event in OpenTelemetry's terms."""

    at: datetime
    name: str
    attributes: Mapping[str, Attribute]


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """A period of a run: the whole run, a wait, an attempt or a phase of one."""

    key: str
    """Unique in the trace."""
    parent: str | None
    """The key of the parent; None for a root span."""
    name: str
    start: datetime
    end: datetime
    attributes: Mapping[str, Attribute] = field(default_factory=dict[str, Attribute])
    notes: Sequence[Note] = ()
    error: str | None = None
    """The reason why it failed; None if it did not."""
    succeeded: bool = False


@dataclass(frozen=True, slots=True)
class JobHistory:
    """The stored records of an ended job."""

    job: JobRecord
    attempts: Sequence[AttemptSummary]
    workers: Mapping[int, Sequence[WorkerRecord]]
    """The workers of the newest attempts, by the attempts' numbers."""
    events: Sequence[EventRecord]
    checkpoints: Sequence[CheckpointRecord]


@dataclass(frozen=True, slots=True)
class CollectorAnswer:
    error: str | None = None
    """The reason why it has not accepted the spans; None if it has."""
    is_away: bool = False
    """True if it would not accept others either."""
    lost: int = 0
    """The number of spans that it has rejected for good, although it has accepted the others."""


def trace_id(job: str) -> int:
    """128 bits: the first half of the SHA-256 of the job's id."""
    return int.from_bytes(sha256(job.encode()).digest()[:16], "big")


def span_id(job: str, key: str) -> int:
    """64 bits that derive from the job's id and the span's key."""
    return int.from_bytes(sha256(f"{job}/{key}".encode()).digest()[:8], "big")


def spans_of(history: JobHistory) -> list[TraceSpan]:
    """The spans of all runs that have ended since a trace was sent, parents before their children."""
    sent = max((one.id for one in history.events if one.kind == TRACE), default=0)
    found: list[TraceSpan] = []
    for start, events in _runs(history):
        if events[-1].id > sent:
            root = _root(history.job, start, events)
            found += [root, *_waits(root, events)]
            # By number and not by time, because the clock may have gone back.
            numbers = {one.attempt for one in events if one.kind == JobState.PLACED}
            for attempt in history.attempts:
                if attempt.number in numbers:
                    found += _attempt(root, history, attempt, events)
    return found


def _runs(history: JobHistory) -> Iterator[tuple[datetime, Sequence[EventRecord]]]:
    """The start and the events of each run. The last event is the job's end."""
    begin = 0
    for place, one in enumerate(history.events):
        if one.kind in _ENDED:
            events = history.events[begin : place + 1]
            if begin:
                # After an end, a retry begins the next run. Events before it are about the previous one.
                retried = next((at for at, event in enumerate(events) if event.kind == JobState.QUEUED), 0)
                events = events[retried:]
            yield events[0].at if begin else history.job.created_at, events
            begin = place + 1


def _root(job: JobRecord, start: datetime, events: Sequence[EventRecord]) -> TraceSpan:
    end = events[-1]
    about: dict[str, Attribute] = {
        "rolecall.job.name": redact_text(job.name),
        "rolecall.owner": job.owner,
        "rolecall.state": end.kind,
        "rolecall.attempt": end.attempt or 0,
        "rolecall.gang.size": sum(job.roles.values()),
    }
    return TraceSpan(
        key=f"job/{start.isoformat()}",
        parent=None,
        name=f"job {job.workload}",
        start=start,
        end=max(start, end.at),
        attributes=_identity(job) | about,
        notes=_notes(one for one in events if one.attempt is None),
        error=redact_text(end.message) if end.kind == JobState.FAILED else None,
        succeeded=end.kind == JobState.SUCCEEDED,
    )


def _waits(root: TraceSpan, events: Sequence[EventRecord]) -> Iterator[TraceSpan]:
    """The times in the queue and the pauses, each with the reason why it began."""
    states = [one for one in events if one.kind in _STATES]
    for begin, end in pairwise(states):
        if begin.kind in {JobState.QUEUED, JobState.PAUSED}:
            name = "queue" if begin.kind == JobState.QUEUED else "paused"
            why = {"rolecall.reason": redact_text(begin.message), "rolecall.attempt": begin.attempt or 0}
            yield TraceSpan(f"{name}/{begin.id}", root.key, name, begin.at, max(begin.at, end.at), why)


def _attempt(
    root: TraceSpan, history: JobHistory, attempt: AttemptSummary, events: Sequence[EventRecord]
) -> Iterator[TraceSpan]:
    """An attempt, and its phases as children."""
    job, workers = history.job, history.workers.get(attempt.number, ())
    own = [one for one in events if one.attempt == attempt.number]
    end = max(attempt.started_at, attempt.ended_at or root.end)
    nodes = sorted({worker.node for worker in workers})[:_MAX_NODES]
    about: dict[str, Attribute] = _identity(job) | {
        "rolecall.attempt": attempt.number,
        "rolecall.state": attempt.state.value,
        "rolecall.gang.size": sum(job.roles.values()),
    }
    about |= {"rolecall.nodes": nodes} if nodes else {}
    about |= {"rolecall.stop": attempt.stop.value} if attempt.stop else {}
    notes = [*_notes(own), *_checkpoints(history.checkpoints, attempt.number)]
    span = TraceSpan(
        key=f"attempt/{attempt.number}",
        parent=root.key,
        name="attempt",
        start=attempt.started_at,
        end=end,
        attributes=about,
        notes=sorted(notes, key=lambda note: note.at)[-MAX_NOTES:],
        error=redact_text(attempt.cause or "failed") if attempt.state is JobState.FAILED else None,
        succeeded=attempt.state is JobState.SUCCEEDED,
    )
    yield span
    yield from _phases(span, attempt, workers, own)


def _phases(
    parent: TraceSpan, attempt: AttemptSummary, workers: Sequence[WorkerRecord], events: Sequence[EventRecord]
) -> Iterator[TraceSpan]:
    """From each phase's begin to that of the next one. A phase that did not begin is left out.

    Nodes report when they start workers and when a worker makes its first step. Because their clocks may differ from
    the master's, no phase begins before the previous one.
    """
    begins = {one.kind: one.at for one in events if one.kind in {JobState.RUNNING, JobState.STOPPING}}
    spawned = min((one.spawned_at for one in workers if one.spawned_at is not None), default=None)
    reached = [
        ("placement", attempt.started_at),
        ("starting", spawned),
        ("first step", begins.get(JobState.RUNNING)),
        ("training", attempt.first_step_at),
        ("stopping", begins.get(JobState.STOPPING)),
    ]
    phases: list[tuple[str, datetime]] = []
    for name, at in reached:
        if at is not None:
            earliest = phases[-1][1] if phases else parent.start
            phases.append((name, min(max(at, earliest), parent.end)))
    for (name, start), (_, end) in pairwise([*phases, ("", parent.end)]):
        yield TraceSpan(f"{parent.key}/{name}", parent.key, name, start, end, {"rolecall.attempt": attempt.number})


def _checkpoints(checkpoints: Sequence[CheckpointRecord], attempt: int) -> Iterator[Note]:
    for one in checkpoints:
        if one.manifest.attempt == attempt:
            size = sum(part.size for part in one.manifest.parts)
            yield Note(one.created_at, "checkpoint", {"rolecall.step": one.manifest.step, "rolecall.bytes": size})


def _notes(events: Iterable[EventRecord]) -> list[Note]:
    """The events that are no changes of state."""
    others = [one for one in events if one.kind not in _STATES][-MAX_NOTES:]
    return [Note(one.at, one.kind, {"message": redact_text(one.message)}) for one in others]


def _identity(job: JobRecord) -> dict[str, Attribute]:
    return {"rolecall.job": job.id, "rolecall.workload": job.workload}
