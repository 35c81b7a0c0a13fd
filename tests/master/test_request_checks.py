# pyright: standard
"""Checks that sleep, loop or break hold up neither the event loop nor other workloads."""

import asyncio
import threading
import time
import weakref
from dataclasses import replace

import pytest

from rolecall.master.catalogue import Catalogue
from rolecall.master.request_checks import AT_ONCE, RequestChecks
from rolecall.spec.errors import BrokenWorkload, CheckTimeout, InvalidJob
from rolecall.spec.job import JobRequest
from rolecall.spec.role import Role
from rolecall.spec.workload import Params

from .harness import TOY

SLOW, TOYS = JobRequest(workload="slow"), JobRequest(workload="toy")
DEADLINE_S = 0.3


def checks_of(check: object, deadline_s: float = DEADLINE_S) -> RequestChecks:
    """A catalogue of the toy and of one whose check does what the test says."""
    slow = replace(TOY, name="slow", check_counts=check)  # type: ignore[arg-type]
    return RequestChecks(Catalogue({"toy": TOY, "slow": slow}), deadline_s)


class Thing:
    """An object that can be watched."""


def spinning(_params: Params, _counts: dict[Role, int]) -> None:
    while True:
        time.monotonic()


def is_checking() -> bool:
    """True while a thread checks the slow workload."""
    return any(thread.name == "check-slow" for thread in threading.enumerate())


async def ended() -> None:
    """Return when no thread checks the slow workload any more."""
    async with asyncio.timeout(20):
        while is_checking():
            await asyncio.sleep(0.01)


async def test_a_check_that_loops_is_given_up_and_ended_while_the_event_loop_runs() -> None:
    checks = checks_of(spinning)
    slow = asyncio.create_task(checks.run(SLOW))
    turns = 0
    while not slow.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert turns > 5
    with pytest.raises(CheckTimeout, match=r"this slow job did not end within 0\.3 s"):
        await slow
    await ended()  # its thread burns no more
    assert (await checks.run(TOYS))["workload"] == "toy"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_check_that_loses_the_interruption_is_interrupted_again() -> None:
    """The interpreter drops what is raised in the callback of a weak reference."""

    def swallowing(_params: Params, _counts: dict[Role, int]) -> None:
        thing = Thing()
        watched = weakref.ref(thing, lambda _: spinning(_params, _counts))
        assert watched() is thing
        del thing
        spinning(_params, _counts)

    checks = checks_of(swallowing)
    for _ in range(2 * AT_ONCE):
        with pytest.raises(CheckTimeout, match="did not end within"):
            await checks.run(SLOW)
        await ended()


async def test_the_check_of_a_caller_that_leaves_is_interrupted() -> None:
    checks = checks_of(spinning, 20)
    left = asyncio.create_task(checks.run(SLOW))
    async with asyncio.timeout(20):
        while not is_checking():
            await asyncio.sleep(0.01)
    left.cancel()
    await ended()


async def test_checks_that_hang_keep_their_own_workload_waiting_and_no_other() -> None:
    release = threading.Event()
    checks = checks_of(lambda _params, _counts: release.wait())
    tries = await asyncio.gather(*(checks.run(SLOW) for _ in range(AT_ONCE + 5)), return_exceptions=True)
    assert all(isinstance(one, CheckTimeout) for one in tries)
    assert sum("busy" in str(one) for one in tries) == 5
    assert sum(thread.name == "check-slow" for thread in threading.enumerate()) == AT_ONCE
    assert (await checks.run(TOYS))["workload"] == "toy"
    with pytest.raises(CheckTimeout, match="busy with 2 other checks"):
        await checks.run(SLOW)
    release.set()
    await ended()
    assert (await checks_of(None, 20).run(SLOW))["workload"] == "slow"


async def test_a_check_that_ended_in_time_counts_even_if_the_event_loop_learns_of_it_late() -> None:
    checking = asyncio.create_task(checks_of(None).run(SLOW))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(time.sleep, 2 * DEADLINE_S)  # as when the machine stalls
    assert (await checking)["workload"] == "slow"


@pytest.mark.parametrize("error", [KeyError("oops"), SystemExit(3), StopIteration(), RecursionError()])
async def test_a_check_that_breaks_is_reported_as_the_workloads_defect(error: BaseException) -> None:
    def broken(_params: Params, _counts: dict[Role, int]) -> None:
        raise error

    with pytest.raises(BrokenWorkload, match=f"check of workload slow is broken .{type(error).__name__}"):
        await checks_of(broken, 20).run(SLOW)


async def test_what_is_wrong_with_a_request_arrives_as_it_is() -> None:
    with pytest.raises(InvalidJob, match="there is no workload 'slwo'; did you mean 'slow'"):
        await checks_of(None, 20).run(JobRequest(workload="slwo"))
    with pytest.raises(InvalidJob, match="'word2vec'; one that was installed after the master started needs a restart"):
        await checks_of(None, 20).run(JobRequest(workload="word2vec"))
    with pytest.raises(InvalidJob, match="steps"):
        await checks_of(None, 20).run(JobRequest(workload="slow", params={"steps": 0}))


async def test_a_caller_that_leaves_gives_the_slot_back() -> None:
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def check(_params: Params, _counts: dict[Role, int]) -> None:
        loop.call_soon_threadsafe(begun.set)
        time.sleep(0.05)

    checks = checks_of(check, 20)
    for _ in range(2 * AT_ONCE):
        left = asyncio.create_task(checks.run(SLOW))
        async with asyncio.timeout(20):
            await begun.wait()
        begun.clear()
        left.cancel()
    assert (await checks.run(SLOW))["workload"] == "slow"
    await ended()


async def test_a_thread_that_can_not_start_gives_the_slot_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    checks = checks_of(None)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", unable)
        for _ in range(AT_ONCE):
            with pytest.raises(RuntimeError):
                await checks.run(SLOW)
    assert await checks.run(SLOW)
