"""The states of jobs and workers, and the valid transitions."""

from enum import StrEnum

from rolecall.spec.errors import IllegalTransition


class JobState(StrEnum):
    """The state of a job. A retry returns to `queued` and keeps the failed attempt's cause."""

    QUEUED = "queued"
    """Stored; waits for slots."""
    PLACED = "placed"
    """A plan for the whole gang is committed; its workers are being started."""
    RUNNING = "running"
    """Every worker has joined the gang."""
    STOPPING = "stopping"
    """The gang is being stopped, immediately or after its next step; the attempt's `stop` determines the next state."""
    PAUSED = "paused"
    """Stopped by its user after a checkpoint; `resume` queues it again."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """True if the state is final unless a user acts."""
        return self in {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}

    @property
    def predicate(self) -> str:
        """The state after the name of a job: `is queued`, `has succeeded`, `was cancelled`."""
        verb = {JobState.SUCCEEDED: "has", JobState.FAILED: "has", JobState.CANCELLED: "was"}.get(self, "is")
        return f"{verb} {self}"

    @property
    def holds_slots(self) -> bool:
        """True if the job's current attempt occupies slots."""
        return self in {JobState.PLACED, JobState.RUNNING, JobState.STOPPING}


STOPPED_STATUS = 75
"""The exit status of a worker that stopped on request, in order with its gang: `EX_TEMPFAIL` of sysexits(3)."""


class WorkerState(StrEnum):
    """The state of one worker of an attempt, in the order of legal transitions."""

    ASSIGNED = "assigned"
    """In the plan; its node has not reported a process yet."""
    STARTING = "starting"
    """Forked; checks its parameters and joins the gang."""
    RUNNING = "running"
    """Joined; its role's function runs."""
    SUCCEEDED = "succeeded"
    """The role's function returned."""
    FAILED = "failed"
    """It reported a failure, or its process died unexpectedly."""
    STOPPED = "stopped"
    """It ended after a stop request, or was killed because its gang stops."""
    LOST = "lost"
    """Its node is lost, or it died but was expendable."""

    @property
    def ended(self) -> bool:
        """True if the worker has no process, as far as the master knows."""
        return self in {WorkerState.SUCCEEDED, WorkerState.FAILED, WorkerState.STOPPED, WorkerState.LOST}


class StopMode(StrEnum):
    """The reason for stopping a gang, which determines how it is stopped and the job's next state."""

    ABORT = "abort"
    """An attempt failed: SIGKILL immediately; then `queued` if restarts are left, otherwise `failed`."""
    CANCEL = "cancel"
    """A user cancels: stop request, SIGKILL after the grace time; then `cancelled`."""
    PAUSE = "pause"
    """A user pauses: request to write a checkpoint and stop; then `paused`."""
    DRAIN = "drain"
    """A node shuts down, or a user resumes a job that is being paused: request to write a checkpoint and stop; then
    `queued`, which does not count as a restart."""
    DEADLINE = "deadline"
    """`deadline_s` has passed: stop request, SIGKILL after the grace time; then `failed`."""
    COMPLETE = "complete"
    """Rank 0 has succeeded and reported the result: SIGKILL for stragglers after the grace time; then `succeeded`."""

    @classmethod
    def _missing_(cls, value: object) -> "StopMode | None":
        """Treat a mode of a newer release as `DRAIN`, which loses no progress."""
        return cls.DRAIN if isinstance(value, str) else None

    @property
    def is_graceful(self) -> bool:
        """True if workers can stop after a step before they are killed."""
        return self is not StopMode.ABORT


TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.PLACED, JobState.PAUSED, JobState.CANCELLED, JobState.FAILED}),
    JobState.PLACED: frozenset({JobState.RUNNING, JobState.STOPPING}),
    JobState.RUNNING: frozenset({JobState.STOPPING, JobState.SUCCEEDED}),
    JobState.STOPPING: frozenset(
        {JobState.QUEUED, JobState.PAUSED, JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}
    ),
    JobState.PAUSED: frozenset({JobState.QUEUED, JobState.CANCELLED}),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset({JobState.QUEUED}),
    JobState.CANCELLED: frozenset({JobState.QUEUED}),
}


def check_transition(before: JobState, after: JobState) -> None:
    """Raise `IllegalTransition` unless a job can change from `before` to `after`."""
    if after not in TRANSITIONS[before]:
        legal = ", ".join(sorted(TRANSITIONS[before])) or "nothing"
        raise IllegalTransition(f"a {before} job can't become {after}; it can become: {legal}")
