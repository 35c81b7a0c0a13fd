"""The inspection of running workers: what a user asks, what a worker answers, and the documents that show it.

The master asks through the answers to heartbeats, the node through a file in the worker's folder. The worker
answers with a file, too, which the node sends to the master in one call.
"""

import signal
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from rolecall.spec.bounds import MAX_BIGINT, Text, storable
from rolecall.spec.model import Request, Value
from rolecall.spec.redaction import redact_text
from rolecall.spec.report import shorten
from rolecall.spec.role import Role
from rolecall.spec.timeline import Span, Step, Window
from rolecall.spec.visible import one_line

Kind = Literal["timeline", "stacks", "profile"]
MAX_THREADS, MAX_FRAMES = 64, 50
"""The threads of a worker, and the innermost calls of each, that are shown."""
_FRAME_CHARS, _ERROR_CHARS = 300, 1000
ANSWER_BYTES = 1 << 20
"""The maximum size of an answer. In a large gang, each worker may send less."""
ANSWER_S = 5.0
"""The time that a worker has for an answer."""
STACKS_SIGNAL = signal.SIGUSR2
"""Makes a worker write the stacks of its threads to its log, also while a call holds Python's lock."""
MAX_PROFILED_STEPS = 1000

_Line = Annotated[str, AfterValidator(lambda text: shorten(one_line(storable(text)), _FRAME_CHARS))]
_Error = Annotated[str, AfterValidator(lambda text: shorten(one_line(redact_text(storable(text))), _ERROR_CHARS))]


class Inspection(Value):
    """The master's request to one worker."""

    id: int = Field(ge=1, le=MAX_BIGINT)
    """Unique, so that a repeated request is executed once."""
    kind: str = Field(max_length=32)
    """A `Kind`; a worker answers others with an error."""
    max_bytes: int = Field(default=ANSWER_BYTES, ge=1, le=ANSWER_BYTES)
    steps: int = Field(default=1, ge=1, le=MAX_PROFILED_STEPS)
    """For `profile`."""


class ThreadStack(Value):
    """The calls of one thread."""

    thread: _Line
    frames: Annotated[tuple[_Line, ...], Field(max_length=MAX_FRAMES, fail_fast=True)]
    """`file:line function`, innermost first."""


class Answer(Value):
    """A worker's answer to an inspection: one of its fields."""

    error: _Error | None = None
    window: Window | None = None
    stacks: Annotated[tuple[ThreadStack, ...], Field(max_length=MAX_THREADS, fail_fast=True)] | None = None
    artifact: Annotated[str, Field(max_length=128)] | None = None
    """The name of the artifact that the profile will have."""


class ClockReading(Value):
    """The relation of a machine's monotonic clock to the master's, from a call whose duration was measured."""

    offset_s: float = Field(allow_inf_nan=False)
    """To be added to times of the machine's clock."""
    uncertainty_s: float = Field(ge=0, allow_inf_nan=False)
    """Half the duration of the fastest call."""


class _Worker(Value):
    """A worker of the inspected attempt."""

    rank: int
    role: Role
    role_rank: int
    node: Text


class Silent(_Worker):
    """A worker without an answer."""

    reason: _Error


class WorkerTimeline(_Worker):
    """The recent steps of one worker."""

    clock_uncertainty_s: float | None
    """The maximum error of the times relative to other workers'. 0 on the machine of the first worker that answered;
    null if only the machines' wall clocks could be compared."""
    cut: bool
    """True if spans of the oldest steps are missing."""
    steps: tuple[Step, ...]
    spans: tuple[Span, ...]


class TimelineDocument(Value):
    """The phases of the workers' recent steps, with times in seconds since `at`."""

    job: str
    attempt: int
    live: bool
    """True if running workers were asked; false if it shows what ended workers left."""
    at: datetime
    """The begin of the earliest step shown."""
    workers: tuple[WorkerTimeline, ...]
    silent: tuple[Silent, ...]


class TraceDocument(Value):
    """A timeline in Chrome's trace event format, which Perfetto and `chrome://tracing` open."""

    events: tuple[dict[str, Any], ...] = Field(alias="traceEvents")
    unit: Literal["ms"] = Field(alias="displayTimeUnit")
    """The unit in which viewers show times. The events have microseconds."""
    other: dict[str, Any] = Field(alias="otherData")


class WorkerStacks(_Worker):
    """The calls of all Python threads of one worker."""

    threads: tuple[ThreadStack, ...]


class StacksDocument(Value):
    """The calls that the workers of a job execute at the moment."""

    job: str
    attempt: int
    workers: tuple[WorkerStacks, ...]
    silent: tuple[Silent, ...]


class ProfileRequest(Request):
    """The workers to profile, and the number of steps."""

    role: Role | None = None
    """Only workers of this role; by default all that run steps: trainers, stages and observers."""
    role_rank: int | None = Field(default=None, ge=0, le=MAX_BIGINT)
    """Only the worker with this rank in its role; by default the first."""
    steps: int = Field(default=20, ge=1, le=MAX_PROFILED_STEPS)
    """The number of steps to record, beginning with the next one."""


class Profiled(_Worker):
    """A worker that records a profile."""

    artifact: Text
    """The name of the artifact that the job will have after these steps. The next profile of the worker replaces it."""


class ProfileDocument(Value):
    """The workers that record a profile."""

    job: str
    attempt: int
    workers: tuple[Profiled, ...]
    silent: tuple[Silent, ...]
