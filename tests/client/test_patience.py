"""Retries while a master is unavailable, on a clock that the test moves."""

import pytest
from tests.clock import ManualClock

from rolecall.client.errors import Unreachable
from rolecall.client.patience import PAUSE_S, RETRY_S, Patience


class Flaky:
    """A request that fails `failures` times before each answer."""

    def __init__(self, failures: int) -> None:
        self.failures, self.calls = failures, 0

    def __call__(self) -> int:
        self.calls += 1
        if self.calls % (self.failures + 1):
            raise Unreachable("no master answers")
        return self.calls


def test_a_call_is_retried_until_the_master_answers() -> None:
    clock, said = ManualClock(), list[str]()
    patience = Patience(said.append, clock=clock, sleep=clock.sleep)
    assert patience.call(Flaky(3)) == 4
    assert clock.pauses == [PAUSE_S] * 3
    assert said == ["the master does not answer; retrying for 120 s", "the master answers again"]


def test_a_call_fails_when_the_time_since_the_last_answer_is_up() -> None:
    clock = ManualClock()
    patience = Patience(clock=clock, sleep=clock.sleep)
    with pytest.raises(Unreachable, match="no master answers"):
        patience.call(Flaky(10_000))
    assert RETRY_S < clock.now <= RETRY_S + 2 * PAUSE_S
    with pytest.raises(Unreachable):
        patience.call(Flaky(1))
    assert len(clock.pauses) == pytest.approx(RETRY_S / PAUSE_S, abs=2), "later calls are not retried"


def test_each_answer_restarts_the_time() -> None:
    clock = ManualClock()
    patience, request = Patience(clock=clock, sleep=clock.sleep), Flaky(300)
    for _ in range(3):
        patience.call(request)
    assert clock.now > 2 * RETRY_S
