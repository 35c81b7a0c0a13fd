# pyright: standard
"""The decisions about observed states, by table."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rolecall.master import lifecycle
from rolecall.master.store.records import AttemptRecord, Gang, JobRecord, WorkerRecord
from rolecall.spec.errors import IllegalTransition
from rolecall.spec.job import Progress
from rolecall.spec.plan import GangPlan
from rolecall.spec.report import Failure, WorkerReport
from rolecall.spec.role import Role
from rolecall.spec.state import JobState as J
from rolecall.spec.state import StopMode, check_transition
from rolecall.spec.state import WorkerState as W

NOW = datetime(2030, 1, 1, tzinfo=UTC)
EXPENDABLE = frozenset({Role.OBSERVER})
WORKERS = ((Role.PARAMETER_SERVER, 0), (Role.TRAINER, 0), *((Role.OBSERVER, number) for number in range(3)))


def make_job(state: J, **values: Any) -> JobRecord:
    """A job in its first attempt."""
    fields: dict[str, Any] = {name: None for name in JobRecord.__dataclass_fields__}
    given: dict[str, Any] = {
        "id": "toy-1",
        "workload": "toy",
        "attempt": 1,
        "restarts": 0,
        "max_restarts": 1,
        "crashes": 0,
    }
    given |= {"progress": Progress(), "queued_at": NOW, "state": state}
    return JobRecord(**(fields | given | values))


def make_gang(state: J, *states: W, stop: StopMode | None = None, **values: Any) -> Gang:
    """A server, a trainer and up to three observers in these states."""
    workers = tuple(
        WorkerRecord(
            job="toy-1",
            attempt=1,
            rank=rank,
            role=role,
            role_rank=role_rank,
            node=f"{role}-{role_rank}",
            state=at,
            pid=None,
            exit_code=None,
            failure=values.get("failures", {}).get(rank),
            spawned_at=NOW + timedelta(seconds=2),
            joined_at=NOW + timedelta(seconds=3),
        )
        for rank, ((role, role_rank), at) in enumerate(zip(WORKERS, states, strict=False))
    )
    attempt = AttemptRecord(
        job="toy-1",
        number=1,
        plan=GangPlan(workers=()),
        resume_from=None,
        state=state,
        cause=None,
        stop=stop,
        rendezvous_port=None,
        queued_at=NOW,
        started_at=NOW + timedelta(seconds=1),
        first_step_at=NOW + timedelta(seconds=4),
        ended_at=None,
    )
    return Gang(job=make_job(state, **values.get("job", {})), attempt=attempt, workers=workers)


def fail(seconds: float = 0, **values: Any) -> Failure:
    """A failure `seconds` after the start."""
    given: dict[str, Any] = {"message": "boom", "at": NOW + timedelta(seconds=seconds)}
    return Failure(**(given | values))


R, S, F, L, X, A = W.RUNNING, W.SUCCEEDED, W.FAILED, W.LOST, W.STOPPED, W.ASSIGNED
PAUSE, DRAIN = StopMode.PAUSE, StopMode.DRAIN


@pytest.mark.parametrize(
    ("gang", "after", "stop"),
    [
        (make_gang(J.PLACED, R, W.STARTING), None, None),
        (make_gang(J.PLACED, R, R, R), J.RUNNING, None),
        (make_gang(J.PLACED, R, R, L), J.RUNNING, None),
        (make_gang(J.PLACED, S, S), J.RUNNING, None),
        (make_gang(J.PLACED, A, F), J.STOPPING, StopMode.ABORT),
        (make_gang(J.RUNNING, R, R, R), None, None),
        (make_gang(J.RUNNING, R, L), J.STOPPING, StopMode.ABORT),
        (make_gang(J.RUNNING, R, R, L), None, None),
        (make_gang(J.RUNNING, R, X, R), J.STOPPING, StopMode.ABORT),
        (make_gang(J.RUNNING, R, R, X), None, None),
        (make_gang(J.RUNNING, S, S, S), J.SUCCEEDED, None),
        (make_gang(J.RUNNING, S, R), J.STOPPING, StopMode.COMPLETE),
        (make_gang(J.RUNNING, R, S, R), None, None),
        (make_gang(J.RUNNING, S, F, failures={1: fail(consequence=True)}), J.SUCCEEDED, None),
        (make_gang(J.RUNNING, S, F, failures={1: fail()}), J.STOPPING, StopMode.ABORT),
        (make_gang(J.RUNNING, R, R, job={"deadline_at": NOW, "deadline_s": 1}), J.STOPPING, StopMode.DEADLINE),
        (make_gang(J.STOPPING, X, R, stop=StopMode.ABORT), None, None),
        (make_gang(J.STOPPING, F, X, stop=StopMode.ABORT), J.QUEUED, None),
        (make_gang(J.STOPPING, F, X, stop=StopMode.ABORT, job={"restarts": 1}), J.FAILED, None),
        (make_gang(J.STOPPING, F, X, stop=StopMode.ABORT, failures={0: fail(retryable=False)}), J.FAILED, None),
        (make_gang(J.STOPPING, X, X, stop=StopMode.CANCEL), J.CANCELLED, None),
        (make_gang(J.STOPPING, S, S, stop=StopMode.CANCEL), J.CANCELLED, None),
        (make_gang(J.STOPPING, X, X, stop=PAUSE), J.PAUSED, None),
        (make_gang(J.STOPPING, S, S, X, stop=PAUSE), J.SUCCEEDED, None),
        (make_gang(J.STOPPING, X, X, stop=DRAIN), J.QUEUED, None),
        (make_gang(J.STOPPING, X, X, stop=StopMode.DEADLINE), J.FAILED, None),
        (make_gang(J.STOPPING, S, X, stop=StopMode.COMPLETE), J.SUCCEEDED, None),
    ],
)
def test_the_next_step(gang: Gang, after: J | None, stop: StopMode | None) -> None:
    step = lifecycle.next_step(gang, EXPENDABLE, set(), NOW)
    assert (step and step.after, step and step.stop) == (after, stop)
    if step:
        check_transition(gang.job.state, step.after)


@pytest.mark.parametrize("stop", [PAUSE, DRAIN])
def test_a_pause_or_drain_names_the_worker_that_failed_meanwhile(stop: StopMode) -> None:
    """Its part of the last checkpoint can be missing."""
    gang = make_gang(
        J.STOPPING, X, F, stop=stop, failures={1: fail(message="killed by SIGKILL")}, job={"reason": "asked"}
    )
    step = lifecycle.next_step(gang, EXPENDABLE, set(), NOW)
    assert step is not None
    assert step.reason is not None
    assert step.reason.startswith("asked; meanwhile, ")
    assert step.reason.endswith("killed by SIGKILL")


def test_a_draining_node_stops_its_gangs_at_no_cost() -> None:
    step = lifecycle.next_step(make_gang(J.RUNNING, R, R), EXPENDABLE, {"trainer-0"}, NOW)
    assert step is not None
    assert step.stop is DRAIN
    after = lifecycle.next_step(make_gang(J.STOPPING, X, X, stop=DRAIN), EXPENDABLE, set(), NOW)
    assert after is not None
    assert not after.costs_restart


def test_the_cause_is_the_earliest_failure_that_is_no_consequence() -> None:
    failures = {0: fail(1, consequence=True), 1: fail(2, message="ValueError: x", traceback="line 7")}
    gang = make_gang(J.RUNNING, F, F, failures=failures)
    assert lifecycle.cause_of(gang, EXPENDABLE) == "trainer-0 on trainer-0: ValueError: x"


def test_the_cause_names_its_worker_however_long_it_is() -> None:
    failure = fail(1, message=f"KeyError: {'k' * 9000}", traceback="t")
    cause = lifecycle.cause_of(make_gang(J.RUNNING, R, F, failures={1: failure}), EXPENDABLE)
    assert cause is not None
    assert cause.startswith("trainer-0 on trainer-0: KeyError: kkk")
    assert 900 < len(cause) <= 1000


def test_an_expendable_failure_is_dropped_and_not_blamed() -> None:
    gang = make_gang(J.RUNNING, R, R, F)
    assert [worker.role for worker in lifecycle.dropped(gang, EXPENDABLE)] == [Role.OBSERVER]
    assert lifecycle.next_step(gang, EXPENDABLE, set(), NOW) is None
    assert lifecycle.next_step(gang, frozenset(), set(), NOW) is not None


def test_the_last_failure_of_expendable_workers_is_the_cause_if_too_few_of_them_remain() -> None:
    failures = {
        1: fail(9, message="PeerLost: 0 of 2 observers remain", consequence=True),
        2: fail(3, message="OSError: tolerated"),
        3: fail(8, message="TypeError: the last one", retryable=False),
        4: fail(10, message="RuntimeError: eof", consequence=True),
    }
    gang = make_gang(J.STOPPING, X, F, L, F, F, stop=StopMode.ABORT, failures=failures)
    last, too_few = "observer-1 on observer-1: TypeError: the last one", "PeerLost: 0 of 2 observers remain"
    assert lifecycle.cause_of(gang, EXPENDABLE) == f"{last}; trainer-0 on trainer-0: {too_few}"
    step = lifecycle.next_step(gang, EXPENDABLE, set(), NOW)
    assert step is not None
    assert step.after is J.QUEUED, "another attempt can have its observers on other nodes"


def test_a_failure_that_the_gang_tolerated_is_not_the_cause_of_a_later_loss() -> None:
    failures = {
        1: fail(9, message="PeerLost: 0 of 2 observers remain", consequence=True),
        2: fail(3, message="InputError: tolerated", retryable=False),
        3: fail(8, message="RuntimeError: connection reset by peer", consequence=True),
    }
    gang = make_gang(J.STOPPING, X, F, L, F, stop=StopMode.ABORT, failures=failures)
    assert lifecycle.cause_of(gang, EXPENDABLE) == "trainer-0 on trainer-0: PeerLost: 0 of 2 observers remain"


def test_an_error_of_a_worker_that_the_gang_needs_is_the_cause_whatever_failed_before() -> None:
    failures = {1: fail(9, message="ValueError: x"), 2: fail(3, message="TypeError: y")}
    gang = make_gang(J.RUNNING, R, F, L, failures=failures)
    assert lifecycle.cause_of(gang, EXPENDABLE) == "trainer-0 on trainer-0: ValueError: x"


def test_an_expendable_worker_is_missed_until_it_has_joined() -> None:
    gang = make_gang(J.PLACED, R, R, F)
    early = replace(gang, workers=tuple(replace(worker, joined_at=None) for worker in gang.workers))
    assert not lifecycle.dropped(early, EXPENDABLE)
    step = lifecycle.next_step(early, EXPENDABLE, set(), NOW)
    assert step is not None
    assert step.after is J.STOPPING


def test_reports_only_bring_a_worker_forward() -> None:
    worker = make_gang(J.RUNNING, R).workers[0]
    report = WorkerReport(job="toy-1", attempt=1, rank=0, state=W.STARTING, pid=7)
    assert lifecycle.observe(worker, report) == replace(worker, pid=7)
    ended = replace(worker, state=X)
    assert lifecycle.observe(ended, report.model_copy(update={"state": F})) == ended


def test_backoff_doubles_up_to_a_bound() -> None:
    assert [lifecycle.backoff_s(n) for n in (1, 2, 3, 8, 9, 5000)] == [0.2, 0.4, 0.8, 25.6, 30.0, 30.0]


def test_start_times_are_cut_where_responsibility_changes() -> None:
    gang = make_gang(J.RUNNING, R, R)
    times = lifecycle.start_times(gang.attempt, gang.workers)
    assert times is not None
    assert (times.queue, times.spawn, times.join, times.first_step, times.total) == (1.0, 1.0, 1.0, 1.0, 4.0)


@pytest.mark.parametrize("state", [state for state in J if not state.ended])
def test_cancel_works_in_every_state_that_is_not_final(state: J) -> None:
    step = lifecycle.cancel(make_job(state), "alice")
    assert step.after is (J.STOPPING if state.holds_slots else J.CANCELLED)


@pytest.mark.parametrize("state", [state for state in J if state.ended])
def test_what_ended_can_not_be_cancelled_or_paused(state: J) -> None:
    with pytest.raises(IllegalTransition, match="already ended"):
        lifecycle.cancel(make_job(state), "alice")
    with pytest.raises(IllegalTransition, match="already ended"):
        lifecycle.pause(make_job(state), None, "alice")


def test_a_gang_that_aborts_can_not_be_paused() -> None:
    with pytest.raises(IllegalTransition, match="abort"):
        lifecycle.pause(make_job(J.STOPPING), StopMode.ABORT, "alice")
    assert lifecycle.pause(make_job(J.STOPPING), DRAIN, "alice").stop is PAUSE


def test_a_job_that_is_paused_or_being_paused_is_resumed() -> None:
    assert lifecycle.resume(make_job(J.PAUSED), None, "alice").after is J.QUEUED
    step = lifecycle.resume(make_job(J.STOPPING), PAUSE, "alice")
    assert (step.stop, step.reason) == (DRAIN, "resumed by alice")
    step = lifecycle.resume(make_job(J.STOPPING, reason="a node drains"), DRAIN, "alice")
    assert (step.stop, step.reason) == (DRAIN, "a node drains"), "it is queued for that"
    for state, stop in ((J.QUEUED, None), (J.RUNNING, None), (J.STOPPING, StopMode.CANCEL), (J.SUCCEEDED, None)):
        with pytest.raises(IllegalTransition, match="only a paused job"):
            lifecycle.resume(make_job(state), stop, "alice")


def test_a_job_with_many_attempts_gets_no_more() -> None:
    for state, stop in ((J.PAUSED, None), (J.STOPPING, PAUSE)):
        lifecycle.resume(make_job(state, attempt=999), stop, "alice")
        with pytest.raises(IllegalTransition, match="has had 1000 attempts"):
            lifecycle.resume(make_job(state, attempt=1000), stop, "alice")
    lifecycle.check_retry(make_job(J.FAILED, attempt=999))
    with pytest.raises(IllegalTransition, match="has had 1000 attempts"):
        lifecycle.check_retry(make_job(J.FAILED, attempt=1000))
