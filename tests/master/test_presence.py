"""The nodes that are alive, by a clock that the test turns."""

import asyncio
import time
from pathlib import Path

import pytest

from rolecall.master import lag as lags
from rolecall.master.lag import Lag
from rolecall.master.presence import Presence
from rolecall.master.store.records import NodeRecord
from rolecall.spec.finding import Finding, Level
from rolecall.spec.role import Role

from .harness import ManualClock, Node, make_node, on_master

NODE, FIRST, SECOND = "trainer-0", "first", "second"


def finding(level: Level, message: str = "") -> Finding:
    return Finding(check="disk", level=level, message=message)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def presence(clock: ManualClock) -> Presence:
    return Presence(10.0, clock.monotonic)


@pytest.mark.parametrize(("silence_s", "lost"), [(0.0, False), (10.0, False), (10.1, True)])
def test_a_node_is_lost_after_the_timeout(presence: Presence, clock: ManualClock, silence_s: float, lost: bool) -> None:
    clock.advance(60)
    presence.register(NODE, FIRST)
    clock.advance(silence_s)
    assert presence.silence_s(NODE) == pytest.approx(silence_s)
    assert presence.is_lost(NODE) == lost


def test_a_fresh_master_gives_nodes_without_a_heartbeat_the_whole_timeout(
    presence: Presence, clock: ManualClock
) -> None:
    clock.advance(10)
    assert not presence.is_lost(NODE)
    clock.advance(0.1)
    assert presence.is_lost(NODE)


def test_a_node_is_alive_once_its_findings_are_recorded(presence: Presence) -> None:
    presence.register(NODE, FIRST)
    assert not presence.is_alive(NODE)
    presence.record_findings(NODE, ())
    assert presence.is_alive(NODE)
    presence.register(NODE, SECOND)
    assert not presence.is_alive(NODE)


@pytest.mark.parametrize(
    ("before", "after", "news"),
    [
        ((), (), False),
        ((), (finding(Level.WARNING),), True),
        ((finding(Level.WARNING, "9 GB free"),), (finding(Level.WARNING, "8 GB free"),), False),
        ((finding(Level.WARNING),), (finding(Level.ERROR),), True),
    ],
)
def test_only_another_level_is_news_to_a_placement(
    presence: Presence, before: tuple[Finding, ...], after: tuple[Finding, ...], news: bool
) -> None:
    assert presence.record_findings(NODE, before), "the first ones always"
    assert presence.record_findings(NODE, after) == news


def test_an_incarnation_is_expected_until_its_call_is_answered_and_a_moment_longer(
    presence: Presence, clock: ManualClock
) -> None:
    presence.expect_call(FIRST, 5.0)
    clock.advance(5.9)
    assert presence.is_expected(FIRST)
    presence.record_pass()
    clock.advance(0.2)
    assert not presence.is_expected(FIRST)
    assert not presence.is_expected(SECOND)


def test_the_name_is_the_last_incarnations_alone(presence: Presence) -> None:
    presence.register(NODE, FIRST)
    presence.mark_replaced(FIRST)
    presence.register(NODE, SECOND)
    assert presence.is_current(NODE, SECOND)
    assert not presence.is_current(NODE, FIRST)
    assert presence.is_replaced(FIRST)
    presence.forget(NODE)
    assert not presence.is_current(NODE, SECOND)
    assert presence.is_replaced(FIRST), "also after the node has left"


@pytest.mark.parametrize(
    ("has_beaten", "silence_s", "expected"), [(True, 9, True), (False, 2.9, True), (False, 3.1, False)]
)
def test_the_name_of_a_node_that_never_called_is_soon_free(
    presence: Presence, clock: ManualClock, has_beaten: bool, silence_s: float, expected: bool
) -> None:
    if has_beaten:
        presence.record_heartbeat(NODE, FIRST)
    clock.advance(silence_s)
    assert presence.may_be_alive(NODE) == expected


@pytest.mark.parametrize(("pause_s", "lost"), [(9.0, True), (11.0, False)])
def test_a_master_that_was_stopped_itself_gives_every_node_its_time_again(
    presence: Presence, clock: ManualClock, pause_s: float, lost: bool
) -> None:
    presence.register(NODE, FIRST)
    clock.advance(2)
    presence.record_pass()
    clock.advance(pause_s)
    presence.record_pass()
    assert presence.is_lost(NODE) == lost


def test_states_are_those_that_placement_and_users_see(presence: Presence, clock: ManualClock) -> None:
    spec = make_node(NODE, Role.TRAINER)
    presence.register(NODE, spec.started)
    presence.record_findings(NODE, (finding(Level.ERROR, "the disk is full"),))
    clock.advance(1.5)
    record = NodeRecord(name=NODE, spec=spec, started=spec.started, draining=False, registered_at=clock.now())
    (state,) = presence.states([record])
    assert (state.alive, state.draining, state.heartbeat_age_s) == (True, False, 1.5)
    assert state.obstacle == "the disk is full"
    presence.closing = True
    assert presence.states([record])[0].draining


@pytest.mark.parametrize(
    ("lag_s", "silence_s", "lost"), [(4.0, 13.9, False), (4.0, 14.1, True), (1e6, 29.9, False), (1e6, 30.1, True)]
)
def test_a_late_master_is_more_patient_within_limits(
    clock: ManualClock, lag_s: float, silence_s: float, lost: bool
) -> None:
    presence = Presence(10.0, clock.monotonic, lambda: lag_s)
    presence.register(NODE, FIRST)
    clock.advance(silence_s)
    assert presence.is_lost(NODE) == lost
    assert presence.may_be_alive(NODE) != lost


async def test_the_lag_is_the_time_in_which_the_event_loop_did_something_else(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lags, "_EVERY_S", 0.0)  # so that it measures each pass of the loop
    lag = Lag(1.0, clock.monotonic)
    running = asyncio.create_task(lag.run())
    await asyncio.sleep(0)
    assert lag.recent_s() == 0.0
    clock.advance(0.5)
    assert lag.recent_s() == 0.5, "the current delay counts"
    await asyncio.sleep(0)
    assert lag.recent_s() == 0.5
    clock.advance(0.25)
    await asyncio.sleep(0)
    assert lag.recent_s() == 0.75
    for _ in range(12):
        clock.advance(0.0625)  # a normal delay
        await asyncio.sleep(0)
    assert lag.recent_s() == 0.75
    for _ in range(4):
        clock.advance(0.0625)
        await asyncio.sleep(0)
    assert lag.recent_s() == 0.25, "it forgets the earlier delay"
    for _ in range(100):
        clock.advance(0.25)
        await asyncio.sleep(0)
    assert len(lag._delays) < 20, "also while nobody asks, because all nodes are healthy"  # pyright: ignore[reportPrivateUsage]
    running.cancel()


@pytest.mark.slow
async def test_a_node_is_not_lost_while_the_master_is_late(tmp_path: Path, clock: ManualClock) -> None:
    async with on_master(tmp_path, clock=clock, node_timeout_s=0.5) as client:
        await Node(client, make_node(NODE, Role.TRAINER)).register()
        clock.advance(0.9)
        assert client.master.presence.is_lost(NODE)
        deadline = time.monotonic() + 10
        while client.master.presence.is_lost(NODE):
            assert time.monotonic() < deadline, "the master's own delay does not count"
            time.sleep(0.01)  # noqa: ASYNC251 - the master does nothing meanwhile, so no heartbeat could arrive
        assert client.master.presence.silence_s(NODE) == 0.9


async def test_a_nodes_fence_outlasts_the_masters_patience(tmp_path: Path) -> None:
    async with on_master(tmp_path, node_timeout_s=40.0) as client:
        registered = await Node(client, make_node(NODE, Role.TRAINER)).register()
        assert registered.json()["node_timeout_s"] == client.master.presence.longest_silence_s == 120.0
