"""Calls that get no turn hold none, however they end."""

import asyncio

from rolecall.master.api.waiting import Waiters


async def _begun() -> None:
    """Return when each waiter has begun to wait."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_call_holds_all_its_turns_or_none() -> None:
    waiters, own, shared = Waiters(), asyncio.Semaphore(1), asyncio.Semaphore(1)
    assert await waiters.acquire("a", own, shared, most=1, wait_s=10)
    assert own.locked()
    assert shared.locked()
    other = asyncio.Semaphore(1)
    assert not await waiters.acquire("b", other, shared, most=1, wait_s=0.01), "too late"
    assert not other.locked()
    cancelled = asyncio.create_task(waiters.acquire("b", other, shared, most=1, wait_s=10))
    await _begun()
    assert other.locked(), "waits for the shared turn"
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert not other.locked()
    shared.release()
    assert await waiters.acquire("b", other, shared, most=1, wait_s=10), "nobody waits any longer"


async def test_a_client_has_few_waiters_and_others_have_their_own() -> None:
    waiters, turn = Waiters(), asyncio.Semaphore(0)
    waiting = [asyncio.create_task(waiters.acquire("a", turn, most=2, wait_s=10)) for _ in range(2)]
    await _begun()
    assert not await waiters.acquire("a", turn, most=2, wait_s=10)
    waiting.append(asyncio.create_task(waiters.acquire("b", turn, most=2, wait_s=10)))
    await _begun()
    for _ in waiting:
        turn.release()
    assert await asyncio.gather(*waiting) == [True] * 3
