"""Observations of workers: state, progress and failures."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from rolecall.spec.bounds import MAX_BIGINT, MAX_INTEGER, Moment, Text, at_most, storable
from rolecall.spec.finding import NodeFinding
from rolecall.spec.model import Value
from rolecall.spec.redaction import Redacted, redact_text
from rolecall.spec.role import Role
from rolecall.spec.state import WorkerState
from rolecall.spec.visible import one_line

_MESSAGE_CHARS, _TRACEBACK_CHARS = 4096, 32768
"""The maximum lengths of a failure's texts. They are part of heartbeats, whose size the master limits."""
_SUMMARY_CHARS = 200
"""The same for past attempts, because a job can have a thousand of them."""
MAX_METRICS = 1000
"""The maximum number of metrics of a progress line, and of a job's progress."""
_METRIC_NAME_CHARS = 200
_MetricName = Annotated[Text, Field(max_length=_METRIC_NAME_CHARS)]
_Count = Annotated[int, Field(ge=0, le=MAX_BIGINT)]
_Rate = Annotated[float, Field(ge=0, le=1e15)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]


def shorten(text: str, max_chars: int) -> str:
    """`text` in at most `max_chars` characters; omits its middle.

    Redact a text first: credentials can't be recognized in a URL that is cut.
    """
    if len(text) <= max_chars:
        return text
    mark = f" [{len(text) - max_chars} characters omitted] "
    kept = max_chars - len(mark)
    return text[: kept - kept // 2] + mark + text[len(text) - kept // 2 :]


_SHORT_MESSAGE = AfterValidator(lambda text: shorten(storable(text), _MESSAGE_CHARS))
_SHORT_LINE = AfterValidator(lambda text: shorten(one_line(storable(text)), _MESSAGE_CHARS))
_SHORT_TRACEBACK = AfterValidator(lambda text: shorten(storable(text), _TRACEBACK_CHARS))


class StartTimes(Value):
    """Seconds from the request to the first optimizer step, in phases."""

    queue: float
    """Until the plan was committed."""
    spawn: float
    """Until the last worker's process had started."""
    join: float
    """Until the last worker had joined the gang."""
    first_step: float
    """Until the first optimizer step was complete."""
    total: float


class Failure(Value):
    """The reason why a worker failed. A gang's cause is its earliest failure that is not a consequence."""

    message: Annotated[Redacted, _SHORT_LINE]
    """One line: the error's class and text, or how the process ended. The middle of a long text is omitted."""
    traceback: Annotated[Redacted, _SHORT_TRACEBACK] = ""
    """The last lines of the traceback, shortened likewise."""
    retryable: bool = True
    consequence: bool = False
    """True if it is only the consequence of a lost peer."""
    condemns_checkpoint: bool = False
    """True if it reports that the checkpoint from which the attempt resumed is damaged."""
    at: Moment

    def brief(self) -> "Failure":
        """A summary without the traceback, for past attempts."""
        return self.model_copy(update={"message": abridged(self.message), "traceback": ""})


class TimeSpent(Value):
    """The uses of a job's time, in seconds since it was submitted. Time that was lost with an attempt is not in it.

    Of several workers that report it, those of the lowest rank count.
    """

    steps: Seconds = 0.0
    """In optimizer steps, input and communication included."""
    data: Seconds = 0.0
    """The part of the steps in which the worker that reports read input."""
    communication: Seconds = 0.0
    """The part in transfers and calls."""
    wait: Seconds = 0.0
    """The part in which it waited for other workers."""
    checkpoint: Seconds = 0.0
    """Training stood still for a checkpoint."""
    evaluation: Seconds = 0.0
    """Training stood still for an evaluation."""
    finish: Seconds = 0.0
    """Since the last step of the job: the final evaluation, samples and the export."""
    resumed: Seconds = 0.0
    """The sum of the others at the start of the current attempt."""

    @property
    def total(self) -> float:
        return self.steps + self.checkpoint + self.evaluation + self.finish

    @property
    def steps_by_activity(self) -> dict[str, float]:
        """The time in steps by activity; empty if the workload doesn't report it."""
        others = {"data": self.data, "communication": self.communication, "wait": self.wait}
        return {"compute": max(0.0, self.steps - sum(others.values()))} | others if any(others.values()) else {}


class ProgressLine(Value):
    """One line of a worker's progress file. Times are from the worker's clock, in UTC.

    Numbers and texts are validated for the database, because a job's code can write anything.
    """

    kind: Literal["forked", "rendezvous", "joined", "first_step", "step", "event", "result"]
    at: Moment
    step: _Count | None = None
    steps: _Count | None = None
    epoch: _Count | None = None
    samples_per_s: _Rate | None = None
    seconds_left: Seconds | None = None
    metrics: Annotated[dict[_MetricName, float], at_most(MAX_METRICS)] = Field(default_factory=dict)
    """`loss` and other values that the workload reports; for `result`, the final metrics."""
    spent: TimeSpent | None = None
    message: Annotated[Redacted, _SHORT_MESSAGE] | None = None
    """For `event`."""
    findings: Annotated[tuple[NodeFinding, ...], Field(fail_fast=True)] = ()
    """For `result`: the findings of an examination of the cluster."""
    port: int | None = Field(default=None, ge=0, le=65535)
    """For `rendezvous`: the port of the gang's store on rank 0's node."""


class WorkerReport(Value):
    """The complete current state of one worker. Every heartbeat contains it until the master no longer needs it."""

    job: str
    attempt: int = Field(ge=0, le=MAX_INTEGER)
    rank: int = Field(ge=0, le=MAX_INTEGER)
    state: WorkerState
    pid: int | None = Field(default=None, ge=0, le=MAX_INTEGER)
    exit_code: int | None = Field(default=None, ge=-MAX_INTEGER, le=MAX_INTEGER)
    """As in `subprocess`: negative for a signal."""
    failure: Failure | None = None
    spawned_at: Moment | None = None
    joined_at: Moment | None = None
    rendezvous_port: int | None = Field(default=None, ge=0, le=65535)
    log_bytes: int | None = None
    """The final size of the log of a worker that has ended. Its last part can arrive later."""


def abridged(text: str) -> str:
    """A short version of `text` for past attempts."""
    return shorten(redact_text(text), _SUMMARY_CHARS)


def cause_prefix(role: Role, role_rank: int, node: str) -> str:
    """The beginning of an attempt's cause, which names the worker that failed, such as `trainer-0 on node-2: `."""
    return f"{role}-{role_rank} on {node}: "


_CAUSE_PREFIX = re.compile(r"\A[a-z-]+-\d+ on [a-z0-9.-]+: ")


def error_of(cause: str) -> str:
    """The part of an attempt's cause that says what happened, without the worker that failed."""
    return _CAUSE_PREFIX.sub("", cause, count=1)


def first_cause(failures: list[Failure]) -> Failure | None:
    """The root cause: the earliest failure that is not a consequence, or else the earliest."""
    return min(failures, key=lambda failure: (failure.consequence, failure.at), default=None)
