"""The states of jobs and workers, and which may follow which."""

from enum import StrEnum

from rolecall.spec.errors import IllegalTransition


class JobState(StrEnum):
    """Where a job stands. A retry goes back to `queued` with the failed attempt's cause kept."""

    QUEUED = "queued"
    """Stored; waits for slots."""
    PLACED = "placed"
    """A plan for the whole gang is committed; its workers are being started."""
    RUNNING = "running"
    """Every worker has joined the gang."""
    STOPPING = "stopping"
    """The gang is being stopped, at once or after its next step; the attempt's `stop` says what follows."""
    PAUSED = "paused"
    """Stopped by its user behind a checkpoint; `resume` queues it again."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to the job by itself."""
        return self in {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}

    @property
    def holds_slots(self) -> bool:
        """Whether the job's current attempt occupies slots."""
        return self in {JobState.PLACED, JobState.RUNNING, JobState.STOPPING}


class WorkerState(StrEnum):
    """Where one worker of an attempt stands; the order below is the order in which states may follow."""

    ASSIGNED = "assigned"
    """In the plan; its node has not reported a process yet."""
    STARTING = "starting"
    """Forked; checks its parameters and joins the gang."""
    RUNNING = "running"
    """Joined; its role's function runs."""
    SUCCEEDED = "succeeded"
    """The role's function returned."""
    FAILED = "failed"
    """It reported a failure or its process died by itself."""
    STOPPED = "stopped"
    """It was asked to stop (or was killed because its gang stops) and is gone."""
    LOST = "lost"
    """Its node vanished, or it was expendable and died."""

    @property
    def ended(self) -> bool:
        """Whether no process of this worker runs any more, as far as the master can know."""
        return self in {WorkerState.SUCCEEDED, WorkerState.FAILED, WorkerState.STOPPED, WorkerState.LOST}


class StopMode(StrEnum):
    """Why a gang is stopped, which decides how hard and what follows."""

    ABORT = "abort"
    """Something failed: SIGKILL at once; back to the queue while restarts are left, else `failed`."""
    CANCEL = "cancel"
    """The user wants it gone: asked first, killed after the grace time; then `cancelled`."""
    PAUSE = "pause"
    """The user wants it later: asked to write a checkpoint and leave; then `paused`."""
    DRAIN = "drain"
    """A node leaves: asked to write a checkpoint; then back to the queue, without costing a restart."""
    DEADLINE = "deadline"
    """`deadline_s` has passed: asked first, killed after the grace time; then `failed`."""
    COMPLETE = "complete"
    """Rank 0 is done and its gang's result is in: stragglers are killed after the grace time; then `succeeded`."""

    @classmethod
    def _missing_(cls, value: object) -> "StopMode | None":
        """A mode of a newer release: leave with a checkpoint, which loses nothing, and go back to the queue."""
        return cls.DRAIN if isinstance(value, str) else None

    @property
    def asks(self) -> bool:
        """Whether workers get the chance to leave between two steps before they are killed."""
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
    """Raise `IllegalTransition` unless a job may go from `before` to `after`."""
    if after not in TRANSITIONS[before]:
        legal = ", ".join(sorted(TRANSITIONS[before])) or "nothing"
        raise IllegalTransition(f"a job that is {before} can't become {after}; it can become: {legal}")
