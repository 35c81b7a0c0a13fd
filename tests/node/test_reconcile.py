"""The actions for desired and actual workers."""

import pytest
from tests.node.harness import launch

from rolecall.node.reconcile import Actual, Ask, Decline, Forget, Key, Kill, SendPort, Start, actions
from rolecall.spec.state import StopMode
from rolecall.spec.wire import DesiredWorker

KEY = Key("j", 1, 0)
LAUNCH = launch("j", "succeed")
WITH_PORT = LAUNCH.model_copy(update={"rendezvous_port": 99})


@pytest.mark.parametrize(
    ("wanted", "have", "expected"),
    [
        (DesiredWorker(launch=LAUNCH), None, [Start(LAUNCH)]),
        (DesiredWorker(launch=LAUNCH, stop=StopMode.ABORT), None, [Decline(LAUNCH)]),
        (DesiredWorker(launch=LAUNCH), Actual(), []),
        (DesiredWorker(launch=WITH_PORT), Actual(), [SendPort(KEY, 99)]),
        (DesiredWorker(launch=WITH_PORT), Actual(has_port=True), []),
        (DesiredWorker(launch=LAUNCH), Actual(ended=True), []),
        (DesiredWorker(launch=LAUNCH, stop=StopMode.ABORT), Actual(), [Kill(KEY)]),
        (DesiredWorker(launch=LAUNCH, stop=StopMode.ABORT), Actual(killed=True), []),
        (DesiredWorker(launch=LAUNCH, stop=StopMode.PAUSE), Actual(), [Kill(KEY)]),
        (DesiredWorker(launch=LAUNCH, stop=StopMode.PAUSE), Actual(joined=True), [Ask(KEY, StopMode.PAUSE)]),
        (DesiredWorker(launch=LAUNCH, stop=StopMode.PAUSE), Actual(joined=True, asked_s=4.9), []),
        (DesiredWorker(launch=LAUNCH, stop=StopMode.PAUSE), Actual(joined=True, asked_s=5.0), [Kill(KEY)]),
        (DesiredWorker(launch=LAUNCH, stop=StopMode.ABORT), Actual(joined=True, asked_s=0.1), [Kill(KEY)]),
        (None, Actual(), [Kill(KEY)]),
        (None, Actual(killed=True), []),
        (None, Actual(ended=True), [Forget(KEY)]),
    ],
)
def test_actions(wanted: DesiredWorker | None, have: Actual | None, expected: list[object]) -> None:
    assert actions([wanted] if wanted else [], {KEY: have} if have else {}, grace_s=5.0) == expected


def test_the_next_attempt_is_another_worker() -> None:
    again = launch("j", "succeed", attempt=2)
    assert actions([DesiredWorker(launch=again)], {KEY: Actual()}, 5.0) == [Kill(KEY), Start(again)]
