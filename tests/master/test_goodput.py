"""The goodput of a job: what was useful of its time, and what the rest was lost to."""

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.goodput import Goodput, Loss, goodput, lost, past_of
from rolecall.master.history import History
from rolecall.master.job_metrics import cause_of
from rolecall.master.store import attempts
from rolecall.master.store.records import AttemptSummary, EndedJob
from rolecall.spec.job import Progress
from rolecall.spec.report import TimeSpent
from rolecall.spec.state import JobState

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def attempt(
    number: int, queued: float, started: float, first_step: float | None, ended: float | None
) -> AttemptSummary:
    return AttemptSummary(
        job="job",
        number=number,
        state=JobState.FAILED if ended else JobState.RUNNING,
        cause=None,
        stop=None,
        rendezvous_port=None,
        queued_at=at(queued),
        started_at=at(started),
        first_step_at=None if first_step is None else at(first_step),
        ended_at=None if ended is None else at(ended),
    )


def test_every_second_of_a_restarted_job_has_a_cause() -> None:
    """It waits 10 s, starts in 5 s, fails 25 s after its last checkpoint, is paused for 30 s, waits 10 s, and starts in
    20 s."""
    first = attempt(1, queued=0, started=10, first_step=15, ended=100)
    second = attempt(2, queued=130, started=140, first_step=160, ended=None)
    spent = TimeSpent(steps=80.0, checkpoint=10.0, evaluation=5.0, resumed=60.0)
    found = goodput(past_of([first], START), second, spent, created_at=START, until=at(200))
    assert found.ratio == 80 / 200
    assert found.lost == {
        Loss.QUEUE: 20,
        Loss.STOPPED: 30,
        Loss.START: 25,
        Loss.CHECKPOINT: 10,
        Loss.EVALUATION: 5,
        Loss.FINISH: 0,
        Loss.REPEATED: 25,
        Loss.OTHER: 5,
    }
    assert sum(found.lost.values()) + spent.steps == 200


@pytest.mark.parametrize(
    ("state", "cause"),
    [(JobState.QUEUED, Loss.QUEUE), (JobState.PAUSED, Loss.STOPPED), (JobState.CANCELLED, Loss.QUEUE)],
)
def test_a_job_between_two_attempts_loses_its_time_to_waiting(state: JobState, cause: Loss) -> None:
    first = attempt(1, queued=0, started=10, first_step=15, ended=100)
    spent = TimeSpent(steps=85.0)
    found = lost([first], spent, state, created_at=START, until=at(150))
    assert found[cause] == 50 + (10 if cause is Loss.QUEUE else 0)
    assert sum(found.values()) + spent.steps == 150
    assert lost([], spent, state, created_at=START, until=at(150)) == {}


def test_the_time_after_the_last_step_has_a_cause_of_its_own() -> None:
    whole = attempt(1, queued=0, started=10, first_step=15, ended=100)
    for finish, other in ((12.0, 3.0), (0.0, 15.0)):  # Workers of earlier releases don't report it.
        spent = TimeSpent.model_validate({"steps": 70.0} | ({"finish": finish} if finish else {}))
        found = lost([whole], spent, JobState.SUCCEEDED, created_at=START, until=at(100))
        assert (found[Loss.FINISH], found[Loss.OTHER]) == (finish, other)
        assert sum(found.values()) + spent.steps == 100


def test_the_first_step_is_not_lost() -> None:
    """It takes 4 of the 5 s in which the job starts."""
    whole = attempt(1, queued=0, started=10, first_step=15, ended=21)
    found = lost([whole], TimeSpent(steps=9.0), JobState.SUCCEEDED, created_at=START, until=at(21))
    assert (found[Loss.QUEUE], found[Loss.START], found[Loss.OTHER]) == (10, 2, 0)
    assert sum(found.values()) + 9.0 == 21


def test_an_attempt_without_a_step_takes_no_time_from_the_starts_before_it() -> None:
    """The time that the first attempt spent counts until the second one reports its own."""
    first = attempt(1, queued=0, started=10, first_step=15, ended=100)
    second = attempt(2, queued=100, started=110, first_step=None, ended=None)
    found = lost([first, second], TimeSpent(steps=85.0), JobState.RUNNING, created_at=START, until=at(120))
    assert found[Loss.START] == 5 + 10


def test_the_time_between_an_end_and_a_retry_is_no_pause() -> None:
    first = attempt(1, queued=0, started=0, first_step=5, ended=10)
    second = attempt(2, queued=500, started=500, first_step=505, ended=510)
    found = lost([first, second], TimeSpent(steps=5.0), JobState.FAILED, created_at=START, until=at(510))
    assert {cause.value: seconds for cause, seconds in found.items() if seconds > 100} == {"stopped": 490}


async def test_a_job_that_was_retried_by_hand_has_the_goodput_of_its_last_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = [attempt(1, queued=0, started=10, first_step=15, ended=100)]

    async def of_jobs(*_: Any) -> list[AttemptSummary]:
        return list(stored)

    monkeypatch.setattr(attempts, "of_jobs", of_jobs)
    history = History()

    async def found(spent: TimeSpent, ended_s: float) -> Goodput:
        """At a scrape after the end of the job."""
        job = EndedJob(
            id="job",
            workload="toy",
            state=JobState.CANCELLED,
            reason=None,
            progress=Progress(spent=spent),
            result=None,
            created_at=START,
            ended_at=at(ended_s),
        )
        return (await history.goodputs(cast(AsyncConnection, None), [], [job], at(ended_s)))["job"]

    assert (await found(TimeSpent(steps=85.0), 100)).ratio == 0.85
    stored.append(attempt(2, queued=150, started=150, first_step=155, ended=190))
    again = await found(TimeSpent(steps=100.0, resumed=85.0), 200)
    assert again.ratio == 0.5
    assert again.lost[Loss.QUEUE] == 10 + 10, "it was queued again when it was cancelled"
    assert again.lost[Loss.STOPPED] == 50


def test_an_attempt_without_a_step_was_all_start() -> None:
    past = past_of([attempt(1, 0, 1, None, 9)], START)
    assert (past.start, past.run) == (8, 0)


@pytest.mark.parametrize("wall_s", [0.0, 1.0])
def test_clocks_that_differ_give_no_negative_times(wall_s: float) -> None:
    found = goodput(
        past_of([], START),
        attempt(1, 0, 2, 5, None),
        TimeSpent(steps=3.0),
        created_at=START,
        until=at(wall_s),
    )
    assert 0 <= found.ratio <= 1
    assert min(found.lost.values()) >= 0


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("trainer-0: NonFiniteLoss: the loss is nan at step 3", "NonFiniteLoss"),
        ("KeyError: 'x'", "other"),
        ("Evil\\nLabel: x", "other"),
        (None, "other"),
    ],
)
def test_only_classes_of_ours_are_named(reason: str | None, cause: str) -> None:
    assert cause_of(reason) == cause
