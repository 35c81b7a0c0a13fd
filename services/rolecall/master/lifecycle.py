"""The state machine of jobs. Pure: a gang's records in, the next step out.

The reconciler takes step after step until there is none. The functions keep no state between two steps, so that a
master that is killed in between takes the same next step after its restart.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

from rolecall.master.store.records import AttemptSummary, Gang, JobSummary, WorkerRecord
from rolecall.retry import delay_s
from rolecall.spec.bounds import MAX_ATTEMPTS
from rolecall.spec.errors import IllegalTransition
from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.report import Failure, StartTimes, WorkerReport, cause_prefix, first_cause
from rolecall.spec.role import Role
from rolecall.spec.state import STOPPED_STATUS, JobState, StopMode, WorkerState

_ORDER = list(WorkerState)
_FAILED = frozenset({WorkerState.FAILED, WorkerState.LOST})
_BACKOFF_S, _MAX_BACKOFF_S = 0.2, 30.0
_HEADLINE_CHARS = 1000
_AFTER = {StopMode.CANCEL: JobState.CANCELLED, StopMode.PAUSE: JobState.PAUSED, StopMode.DEADLINE: JobState.FAILED}


@dataclass(frozen=True, slots=True)
class JobStep:
    """One transition of a job together with its attempt."""

    after: JobState
    reason: str | None = None
    stop: StopMode | None = None
    """For a step to `stopping`: how the gang is stopped."""
    attempt_state: JobState | None = None
    """The attempt's state if it differs from `after`."""
    costs_restart: bool = False


@dataclass(frozen=True, slots=True)
class Accusation:
    """A checkpoint that workers reported as damaged. The cause can be their nodes."""

    manifest: CheckpointManifest
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        return f"the checkpoint at step {self.manifest.step}, which {', '.join(self.nodes)} could not read"


def observe(worker: WorkerRecord, report: WorkerReport) -> WorkerRecord:
    """The record updated by a report. States only advance; the record of an ended worker doesn't change."""
    if worker.state.ended:
        return worker
    state = max(worker.state, report.state, key=_ORDER.index)
    return replace(
        worker,
        state=state,
        pid=report.pid or worker.pid,
        exit_code=report.exit_code,
        failure=report.failure,
        spawned_at=report.spawned_at or worker.spawned_at,
        joined_at=report.joined_at or worker.joined_at,
    )


def dropped(gang: Gang, expendable: Collection[Role]) -> list[WorkerRecord]:
    """The expendable workers that failed. They count as lost, and the gang continues without them."""
    return [w for w in gang.workers if w.state is WorkerState.FAILED and _is_spared(w, expendable)]


def never_started(gang: Gang) -> list[WorkerRecord]:
    """The workers of a stopping gang that never reported a process, so the gang doesn't wait for them."""
    stops = gang.job.state is JobState.STOPPING
    return [worker for worker in gang.workers if stops and worker.state is WorkerState.ASSIGNED]


def has_left_alone(worker: WorkerRecord) -> bool:
    """True if a worker ended, but not in order with its gang: it failed, was killed or never started, or its node is
    lost."""
    killed = worker.state is WorkerState.STOPPED and worker.exit_code != STOPPED_STATUS
    return worker.state in _FAILED or killed


def next_step(gang: Gang, expendable: Collection[Role], draining: Collection[str], now: datetime) -> JobStep | None:
    """The next step of a placed job, or None if there is nothing to do yet."""
    if gang.job.state is JobState.STOPPING:
        return _finish(gang, expendable) if all(worker.state.ended for worker in gang.workers) else None
    is_complete = _is_complete(gang, expendable)
    # A worker that only lost its peers after rank 0's success doesn't end the attempt.
    if any(not (is_complete and failure.consequence) for _, failure in _blamed(gang, expendable)):
        return JobStep(JobState.STOPPING, cause_of(gang, expendable), stop=StopMode.ABORT)
    if gang.job.state is JobState.PLACED and _has_joined(gang, expendable):
        return JobStep(JobState.RUNNING)
    if gang.job.state is JobState.RUNNING and is_complete:
        if all(worker.state.ended for worker in gang.workers):
            return JobStep(JobState.SUCCEEDED)
        return JobStep(JobState.STOPPING, "rank 0 is done; the others stop", stop=StopMode.COMPLETE)
    return _interruption(gang, expendable, draining, now)


def overdue_step(job: JobSummary, now: datetime) -> JobStep | None:
    """The step that ends a queued job whose deadline has passed; None before that."""
    return JobStep(JobState.FAILED, reason) if (reason := _overdue(job, now)) else None


def backoff_s(crashes: int) -> float:
    """Seconds to wait after this number of consecutive failed attempts: exponential, with a maximum."""
    return delay_s(crashes, first=_BACKOFF_S, most=_MAX_BACKOFF_S)


def cause_of(gang: Gang, expendable: Collection[Role]) -> str | None:
    """The root cause in one line: the worker and the error. The worker's failure and its log have the traceback."""
    named = [
        f"{cause_prefix(worker.role, worker.role_rank, worker.node)}{failure.message}"
        for worker, failure in _causes(gang, expendable)
    ]
    return "; ".join(named)[:_HEADLINE_CHARS] or None


def accused(gang: Gang) -> Accusation | None:
    """The checkpoint that the attempt resumed from, if a worker reported it as damaged."""
    accusers = [w for w in gang.workers if w.failure is not None and w.failure.condemns_checkpoint]
    if gang.attempt.resume_from is None or not accusers:
        return None
    return Accusation(gang.attempt.resume_from, tuple(sorted({worker.node for worker in accusers})))


def start_times(attempt: AttemptSummary, workers: Iterable[WorkerRecord]) -> StartTimes | None:
    """The seconds until the attempt's first optimizer step, in phases; None until then.

    No phase is negative, although the clocks of the machines can differ slightly.
    """
    workers = list(workers)
    spawned = [worker.spawned_at for worker in workers if worker.spawned_at]
    joined = [worker.joined_at for worker in workers if worker.joined_at]
    if attempt.first_step_at is None or not spawned or not joined:
        return None
    marks = [attempt.queued_at, attempt.started_at, max(spawned), max(joined), attempt.first_step_at]
    parts = [max(0.0, (end - begin).total_seconds()) for begin, end in pairwise(marks)]
    names = ("queue", "spawn", "join", "first_step")
    return StartTimes(**{n: round(p, 3) for n, p in zip(names, parts, strict=True)}, total=round(sum(parts), 3))


def cancel(job: JobSummary, by: str) -> JobStep:
    """The step with which the token `by` cancels `job` in its current state."""
    _refuse_ended(job, "cancelled")
    if job.state.holds_slots:
        return JobStep(JobState.STOPPING, f"cancelled by {by}", stop=StopMode.CANCEL)
    return JobStep(JobState.CANCELLED, f"cancelled by {by}")


def pause(job: JobSummary, stop: StopMode | None, by: str) -> JobStep:
    """The step with which the token `by` pauses `job`, whose gang may already be stopping in the mode `stop`."""
    _refuse_ended(job, "paused")
    if job.state is JobState.STOPPING and stop not in {StopMode.PAUSE, StopMode.DRAIN}:
        raise IllegalTransition(f"job {job.id} is being stopped ({stop}) and can't be paused; look again in a moment")
    if job.state.holds_slots:
        return JobStep(JobState.STOPPING, f"paused by {by}", stop=StopMode.PAUSE)
    return JobStep(JobState.PAUSED, f"paused by {by}")


def resume(job: JobSummary, stop: StopMode | None, by: str) -> JobStep:
    """The step with which the token `by` resumes `job`, whose gang may still be stopping in the mode `stop`."""
    if job.state is JobState.STOPPING and stop is StopMode.DRAIN:
        return JobStep(JobState.STOPPING, job.reason, stop=StopMode.DRAIN)  # It is queued afterward anyway.
    being_paused = job.state is JobState.STOPPING and stop is StopMode.PAUSE
    if not (being_paused or job.state is JobState.PAUSED):
        raise IllegalTransition(f"job {job.id} {job.state.predicate}; only a paused job can be resumed")
    _refuse_more_attempts(job)
    if being_paused:
        return JobStep(JobState.STOPPING, f"resumed by {by}", stop=StopMode.DRAIN)
    return JobStep(JobState.QUEUED, f"resumed by {by}")


def check_retry(job: JobSummary) -> None:
    """Raise `IllegalTransition` unless `job` failed or was cancelled."""
    if job.state not in {JobState.FAILED, JobState.CANCELLED}:
        raise IllegalTransition(f"job {job.id} {job.state.predicate}; only a failed or cancelled job can be retried")
    _refuse_more_attempts(job)


def _refuse_more_attempts(job: JobSummary) -> None:
    if job.attempt >= MAX_ATTEMPTS:
        raise IllegalTransition(
            f"job {job.id} has had {job.attempt} attempts, and the limit is {MAX_ATTEMPTS}; submit it as a new job"
        )


def _refuse_ended(job: JobSummary, verb: str) -> None:
    if job.state.ended:
        raise IllegalTransition(f"job {job.id} has already ended ({job.state}); it can't be {verb}")


def _interruption(gang: Gang, expendable: Collection[Role], draining: Collection[str], now: datetime) -> JobStep | None:
    left = [w for w in gang.workers if w.state is WorkerState.STOPPED and w.role not in expendable]
    if left:
        # A worker stopped without a request, for example because an operator didn't wait for a drain.
        reason = f"{left[0].name} on {left[0].node} was stopped before its gang"
        return JobStep(JobState.STOPPING, reason, stop=StopMode.ABORT)
    if overdue := _overdue(gang.job, now):
        return JobStep(JobState.STOPPING, overdue, stop=StopMode.DEADLINE)
    if any(not worker.state.ended and worker.node in draining for worker in gang.workers):
        return JobStep(JobState.STOPPING, "a node of the gang is draining", stop=StopMode.DRAIN)
    return None


def _finish(gang: Gang, expendable: Collection[Role]) -> JobStep:
    essential = [worker for worker in gang.workers if worker.role not in expendable]
    done = all(worker.state is WorkerState.SUCCEEDED for worker in essential)
    stop, reason = gang.attempt.stop, gang.job.reason
    if stop is StopMode.COMPLETE or (done and stop in {StopMode.PAUSE, StopMode.DRAIN, StopMode.DEADLINE}):
        return JobStep(JobState.SUCCEEDED)
    if stop in {StopMode.DRAIN, StopMode.PAUSE} and (cause := cause_of(gang, expendable)):
        # The last checkpoint can be missing.
        reason = f"{reason}; meanwhile, {cause}"[:_HEADLINE_CHARS]
    if stop is StopMode.DRAIN:
        return JobStep(JobState.QUEUED, reason, attempt_state=JobState.PAUSED)
    return _try_again(gang, expendable) if stop is None or stop not in _AFTER else JobStep(_AFTER[stop], reason)


def _try_again(gang: Gang, expendable: Collection[Role]) -> JobStep:
    failure = first_cause([failure for _, failure in _blamed(gang, expendable)])
    cause = cause_of(gang, expendable) or gang.job.reason
    if failure is not None and not failure.retryable:
        return JobStep(JobState.FAILED, cause)
    if gang.job.restarts >= gang.job.max_restarts:
        return JobStep(JobState.FAILED, cause)
    return JobStep(JobState.QUEUED, cause, attempt_state=JobState.FAILED, costs_restart=True)


def _causes(gang: Gang, expendable: Collection[Role]) -> list[tuple[WorkerRecord, Failure]]:
    """The failure that ended the gang, with its worker: the first cause of those that the gang can't spare.

    If that is only the consequence of a lost peer, the peer can be an expendable worker, of which too few remain. Its
    failure comes first then.
    """
    blamed = _blamed(gang, expendable)
    cause = first_cause([failure for _, failure in blamed])
    if cause is None:
        return []
    causes = [one for one in blamed if one[1] is cause][:1]
    if not cause.consequence:
        return causes
    spared = [worker for worker in gang.workers if worker.state in _FAILED and _is_spared(worker, expendable)]
    # Consequences that are later come from the end of the gang.
    peers = [(w, w.failure) for w in spared if w.failure and (w.failure.at <= cause.at or not w.failure.consequence)]
    # The gang continued without those that failed before the last one.
    last = sorted(peers, key=lambda peer: peer[1].at)[-1:]
    return [*(peer for peer in last if not peer[1].consequence), *causes]


def _blamed(gang: Gang, expendable: Collection[Role]) -> list[tuple[WorkerRecord, Failure]]:
    failed = [w for w in gang.workers if w.state in _FAILED and not _is_spared(w, expendable)]
    unknown = "the worker failed without reporting a reason"
    return [(w, w.failure or Failure(message=unknown, at=gang.attempt.started_at)) for w in failed]


def _is_spared(worker: WorkerRecord, expendable: Collection[Role]) -> bool:
    """Return whether the gang can continue without the worker. Before the rendezvous it needs all workers."""
    return worker.role in expendable and worker.joined_at is not None


def _is_complete(gang: Gang, expendable: Collection[Role]) -> bool:
    """Return whether the gang is done. Rank 0 ends last, so its success is the gang's."""
    essential = [worker for worker in gang.workers if worker.role not in expendable]
    done = WorkerState.SUCCEEDED
    return gang.workers[0].state is done or (bool(essential) and all(worker.state is done for worker in essential))


def _has_joined(gang: Gang, expendable: Collection[Role]) -> bool:
    joined = {WorkerState.RUNNING, WorkerState.SUCCEEDED}
    return all(w.state in joined or (w.role in expendable and w.state.ended) for w in gang.workers) or _is_complete(
        gang, expendable
    )


def _overdue(job: JobSummary, now: datetime) -> str | None:
    """The reason to end a job whose deadline has passed; None before that."""
    if job.deadline_at is None or now < job.deadline_at:
        return None
    return f"its deadline of {job.deadline_s:g} s after the submission has passed"
