"""What was observed of workers."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from rolecall.spec.bounds import MOST, MOST_BYTES, Moment, Text, at_most, storable
from rolecall.spec.finding import NodeFinding
from rolecall.spec.model import Value
from rolecall.spec.redaction import Redacted, redact_text
from rolecall.spec.state import WorkerState

HEADLINE, TRACEBACK = 4096, 32768
"""The most characters of a failure's texts: they ride in heartbeats, which have a size that the master takes."""
_BRIEF = 200
"""The same where an attempt is history: a job may have a thousand of them."""
_METRICS = 1000
_Count = Annotated[int, Field(ge=0, le=MOST_BYTES)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]


def shorten(text: str, most: int) -> str:
    """`text` in at most `most` characters, with its middle left out."""
    if len(text) <= most:
        return text
    mark = f" [{len(text) - most} characters left out] "
    kept = most - len(mark)
    return text[: kept - kept // 2] + mark + text[len(text) - kept // 2 :]


_AS_HEADLINE = AfterValidator(lambda text: shorten(storable(text), HEADLINE))
_AS_TRACEBACK = AfterValidator(lambda text: shorten(storable(text), TRACEBACK))


class StartTimes(Value):
    """Seconds from asking to the first optimizer step, cut where the responsibility changes hands."""

    queue: float
    """Until the plan was committed."""
    spawn: float
    """Until the last worker's process ran."""
    join: float
    """Until the last worker had joined the gang."""
    first_step: float
    """Until the first optimizer step was done."""
    total: float


class Failure(Value):
    """Why a worker ended badly. Of a gang's failures the earliest that is not a consequence is the cause."""

    message: Annotated[Redacted, _AS_HEADLINE]
    """One line: the error's class and text, or how the process ended. Its middle is left out where it is too long."""
    traceback: Annotated[Redacted, _AS_TRACEBACK] = ""
    """The last lines of the traceback, likewise."""
    retryable: bool = True
    consequence: bool = False
    """Whether it only says that another worker vanished."""
    condemns_checkpoint: bool = False
    """Whether the checkpoint that the attempt resumed from must not be tried again."""
    at: Moment

    def brief(self) -> "Failure":
        """The same without the traceback and in few words, for an attempt that is history."""
        return self.model_copy(update={"message": abridged(self.message), "traceback": ""})


class ProgressLine(Value):
    """One line of a worker's progress file. Times are the worker's clock, UTC.

    Its numbers and texts are such as the database takes, since a job's code can write any.
    """

    kind: Literal["forked", "rendezvous", "joined", "first_step", "step", "event", "result"]
    at: Moment
    step: _Count | None = None
    steps: _Count | None = None
    epoch: _Count | None = None
    samples_per_s: _Finite | None = None
    seconds_left: _Finite | None = None
    metrics: Annotated[dict[Text, float], at_most(_METRICS)] = Field(default_factory=dict)
    """`loss` and whatever else the workload reports; of `result`, the final metrics."""
    message: Annotated[str, _AS_HEADLINE] | None = None
    """Of `event`."""
    findings: tuple[NodeFinding, ...] = ()
    """Of `result`: what an examination of the cluster has found."""
    port: int | None = Field(default=None, ge=0, le=65535)
    """Of `rendezvous`: where the gang's store listens on rank 0's node."""


class WorkerReport(Value):
    """The whole present state of one worker, sent again and again until the master has no more use for it."""

    job: str
    attempt: int = Field(ge=0, le=MOST)
    rank: int = Field(ge=0, le=MOST)
    state: WorkerState
    pid: int | None = Field(default=None, ge=0, le=MOST)
    exit_code: int | None = Field(default=None, ge=-MOST, le=MOST)
    """As `subprocess` has it: negative for a signal."""
    failure: Failure | None = None
    spawned_at: Moment | None = None
    joined_at: Moment | None = None
    rendezvous_port: int | None = Field(default=None, ge=0, le=65535)
    log_bytes: int | None = None
    """Of a worker that has ended: the size of its log, whose rest may come later."""


def abridged(text: str) -> str:
    """What `text` says in short, for history."""
    return shorten(redact_text(text), _BRIEF)  # in this order: a URL that is cut hides its credentials from the search


def first_cause(failures: list[Failure]) -> Failure | None:
    """The failure to blame: the earliest that is not the consequence of another; else the earliest."""
    return min(failures, key=lambda failure: (failure.consequence, failure.at), default=None)
