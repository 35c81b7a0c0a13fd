"""Waking those who wait, and nobody else."""

import asyncio

from rolecall.master.answers import Answers, HeartbeatAnswer
from rolecall.master.signals import Signals, wait
from rolecall.spec.wire import Heartbeat


async def test_only_those_of_the_key_are_woken_and_nothing_is_missed() -> None:
    signals = Signals()
    mine, also_mine, other = signals.ticket("a"), signals.ticket("a"), signals.ticket("b")
    signals.notify("a", "c")  # before anybody waits
    await asyncio.wait_for(asyncio.gather(wait(mine, 60), wait(also_mine, 60)), 5)
    assert not other.is_set()
    assert not signals.ticket("a").is_set()


async def test_keys_without_waiters_are_forgotten() -> None:
    signals = Signals()
    held = signals.ticket("held")
    for number in range(1000):
        signals.ticket(f"job-{number}")
        signals.notify(f"other-{number}")
    assert len(signals) == 1
    signals.notify("held")
    assert held.is_set()
    assert len(signals) == 0


async def test_closing_releases_all_now_and_later() -> None:
    signals = Signals()
    waiting = asyncio.create_task(wait(signals.ticket("a"), 60))
    await asyncio.sleep(0)
    signals.close()
    await asyncio.wait_for(waiting, 5)
    await asyncio.wait_for(wait(signals.ticket("b"), 60), 5)


async def test_an_answer_is_good_until_its_node_is_notified_or_it_grows_old() -> None:
    now = [0.0]
    answers, beat, answer = Answers(lambda: now[0]), Heartbeat(started="first"), HeartbeatAnswer(1, b"{}")

    def remember() -> None:
        ticket = answers.ticket("a")
        answers.record("a", beat, ticket)
        answers.keep("a", "first", answer, ticket)

    remember()
    assert answers.find("a", "first") is answer
    assert answers.is_recorded("a", beat)
    assert answers.find("a", "another incarnation") is None
    assert not answers.is_recorded("a", beat.model_copy(update={"draining": True}))
    answers.notify("b")
    assert answers.find("a", "first") is answer
    answers.notify("a")
    assert answers.find("a", "first") is None
    assert not answers.is_recorded("a", beat)
    remember()
    now[0] = 11.0
    assert answers.find("a", "first") is None
    assert not answers.is_recorded("a", beat)


async def test_what_was_read_before_a_notification_is_not_kept() -> None:
    answers = Answers(lambda: 0.0)
    ticket = answers.ticket("a")
    answers.notify("a")
    answers.keep("a", "first", HeartbeatAnswer(1, b"{}"), ticket)
    assert answers.find("a", "first") is None
