import pytest

from rolecall.spec.errors import IllegalTransition
from rolecall.spec.state import TRANSITIONS, JobState, StopMode, WorkerState, check_transition


def test_every_state_has_transitions() -> None:
    assert TRANSITIONS.keys() == set(JobState)


@pytest.mark.parametrize("before", JobState)
@pytest.mark.parametrize("after", JobState)
def test_exactly_the_listed_transitions_are_legal(before: JobState, after: JobState) -> None:
    if after in TRANSITIONS[before]:
        check_transition(before, after)
    else:
        with pytest.raises(IllegalTransition, match=f"{before} job can't become {after}"):
            check_transition(before, after)


def test_every_job_can_end_and_nothing_holds_slots_when_it_has() -> None:
    for state in JobState:
        assert state.ended or _reachable(state) & {JobState.CANCELLED, JobState.SUCCEEDED}
        assert not (state.ended and state.holds_slots)


def test_the_state_of_a_job_is_described_in_english() -> None:
    assert [JobState.RUNNING.predicate, JobState.SUCCEEDED.predicate] == ["is running", "has succeeded"]
    assert [JobState.FAILED.predicate, JobState.CANCELLED.predicate] == ["has failed", "was cancelled"]


def _reachable(state: JobState) -> set[JobState]:
    found: set[JobState] = set()
    front = {state}
    while front:
        found |= front
        front = {after for before in front for after in TRANSITIONS[before]} - found
    return found


def test_only_an_abort_is_not_graceful() -> None:
    assert [mode for mode in StopMode if not mode.is_graceful] == [StopMode.ABORT]


def test_worker_states_that_have_ended_come_last() -> None:
    ended = [state.ended for state in WorkerState]
    assert ended == sorted(ended)
