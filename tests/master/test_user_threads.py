"""The threads that read logs for users."""

import asyncio
import threading

import pytest

from rolecall.master.user_threads import Search, UserThreads


async def test_a_user_who_searches_a_lot_leaves_threads_to_others() -> None:
    threads, held = UserThreads("logs", threads=3, each=2), threading.Event()
    greedy = [asyncio.create_task(threads.run("greedy", held.wait)) for _ in range(10)]
    async with asyncio.timeout(10):
        assert await threads.run("other", lambda: "read") == "read"
    assert not any(task.done() for task in greedy)
    # Calls whose clients have left keep their turns until they end, so that new ones don't take more threads.
    for task in greedy:
        task.cancel()
    await asyncio.gather(*greedy, return_exceptions=True)
    again = asyncio.create_task(threads.run("greedy", lambda: "read"))
    async with asyncio.timeout(10):
        assert await threads.run("other", lambda: "read") == "read"
    assert not again.done()
    held.set()
    async with asyncio.timeout(10):
        assert await again == "read"
    threads.close()


async def test_a_search_has_a_turn_for_each_step() -> None:
    def search() -> Search[int]:
        for _ in range(3):
            steps.append(threading.current_thread().name)
            yield
        return 7

    steps = list[str]()
    threads = UserThreads("logs")
    assert await threads.result("alice", search()) == 7
    assert len(steps) == 3
    assert all(name.startswith("logs") for name in steps)
    with pytest.raises(ZeroDivisionError):
        await threads.run("alice", lambda: 1 / 0)
    threads.close()
