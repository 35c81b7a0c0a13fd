# pyright: reportPrivateUsage=false
"""A node's pool of workers, whose fork server the test plays: each worker is a `sleep` in its own process group."""

import asyncio
import logging
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.clock import ManualClock
from tests.node.harness import TOKEN, ScriptedMaster, gone, launch, make_settings

from rolecall.network.routes import Route
from rolecall.node import worker_pool
from rolecall.node.client import MasterClient
from rolecall.node.contact import Contact
from rolecall.node.fork_client import ForkClient
from rolecall.node.reconcile import Key, actions
from rolecall.node.worker_pool import WorkerPool
from rolecall.spec.fork import Exited, Forked, ForkRequest
from rolecall.spec.plan import WorkerLaunch
from rolecall.spec.report import ProgressLine
from rolecall.spec.state import StopMode, WorkerState
from rolecall.spec.wire import Desired, DesiredWorker
from rolecall.spec.workdir import Workdir


@dataclass
class Played:
    """The pool, and the fork server's end of its connection."""

    pool: WorkerPool
    forks: ForkClient
    requests: asyncio.StreamReader
    processes: dict[str, subprocess.Popen[bytes]]
    passes: list[None]
    """Has an element for each pass of the pool's loop."""
    checked: list[set[WorkerState]]
    """The states of all workers at each check of the machine."""

    async def fork(self) -> ForkRequest:
        """Fork the worker that the node asks for next."""
        async with asyncio.timeout(10):
            request = ForkRequest.model_validate_json(await self.requests.readline())
        self._start(request.key)
        return request

    def exits(self, key: Key, status: int = 0) -> None:
        """Report the end of a worker's process."""
        process = self.processes.pop(str(key))
        process.kill()
        process.wait()
        self.forks._read(Exited(key=str(key), pid=process.pid, status=status).model_dump_json().encode())

    async def run(self, wanted: WorkerLaunch) -> Key:
        """Let the pool run this worker alone, until it has joined its gang."""
        want(self.pool, wanted)
        workdir = Workdir((await self.fork()).workdir)
        workdir.progress.write_text(ProgressLine(kind="joined", at=datetime.now(UTC)).model_dump_json() + "\n")
        await self.until(Key.of(wanted), WorkerState.RUNNING)
        return Key.of(wanted)

    async def until(self, key: Key, state: WorkerState) -> str:
        """Wait until the worker is in this state; return the message of its failure."""
        async with asyncio.timeout(10):
            while (report := self.pool.workers[key].report).state is not state:
                await asyncio.sleep(0.01)
        return report.failure.message if report.failure else ""

    async def reconciled(self) -> None:
        """Wait for two passes of the pool, the second of which follows the effects of the first one."""
        enough = len(self.passes) + 2
        async with asyncio.timeout(10):
            while len(self.passes) < enough:
                await asyncio.sleep(0.01)

    def runs(self, key: Key) -> bool:
        return not gone({self.processes[str(key)].pid}, 0.0)

    async def dies(self, key: Key) -> bool:
        """Wait for the end of the worker's process; return whether it came."""
        return await asyncio.to_thread(gone, {self.processes[str(key)].pid}, 5.0)

    def _start(self, key: str) -> None:
        process = self.processes[key] = subprocess.Popen(["sleep", "60"], start_new_session=True)
        self.forks._read(Forked(key=key, pid=process.pid).model_dump_json().encode())


@pytest.fixture(scope="module")
def master() -> Iterator[ScriptedMaster]:
    """A master that takes all that workers write."""
    master = ScriptedMaster()
    with master.serving():
        yield master


@pytest.fixture
async def played(master: ScriptedMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Played]:
    """A pool that reconciles."""
    passes: list[None] = []

    def counting(*arguments: Any) -> Any:
        passes.append(None)
        return actions(*arguments)

    monkeypatch.setattr(worker_pool, "actions", counting)
    settings = make_settings(master, tmp_path)
    client, forks, clock = MasterClient(settings.master_url, lambda: TOKEN), ForkClient(), ManualClock()
    ours, theirs = socket.socketpair()
    _, forks._writer = await asyncio.open_connection(sock=ours)
    forks._ready.set()
    requests, answers = await asyncio.open_connection(sock=theirs)
    processes: dict[str, subprocess.Popen[bytes]] = {}
    checked: list[set[WorkerState]] = []

    async def before_failure() -> None:
        checked.append({worker.report.state for worker in pool.workers.values()})

    try:
        async with asyncio.TaskGroup() as tasks:
            pool = WorkerPool(
                settings, client, Contact(60.0), forks, Route("lo", "127.0.0.1"),
                work=tmp_path, tasks=tasks, changed=lambda: None,
                before_failure=before_failure, clock=clock,
            )  # fmt: skip
            reconciling = tasks.create_task(pool.reconcile())
            yield Played(pool, forks, requests, processes, passes, checked)
            reconciling.cancel()
            pool.cancel()
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
        for writer in (forks._writer, answers):
            writer.close()
        await client.close()


def want(pool: WorkerPool, *launches: WorkerLaunch, stop: StopMode | None = None) -> None:
    pool.set_desired(Desired(version=1, workers=tuple(DesiredWorker(launch=one, stop=stop) for one in launches)))


async def test_workers_of_an_owner_share_a_cache_that_is_not_others(played: Played, tmp_path: Path) -> None:
    owned = [launch(job, "stay").model_copy(update={"owner": owner}) for job, owner in (("a", "alice"), ("b", "bob"))]
    want(played.pool, *owned, owned[0].model_copy(update={"job": "c"}))
    caches = {request.launch.job: request.cache for request in [await played.fork() for _ in range(3)]}
    assert caches["a"] == caches["c"] == tmp_path / "caches/alice"
    assert caches["b"] == tmp_path / "caches/bob"
    assert caches["b"].is_dir()


async def test_new_workers_use_the_route_that_the_node_has_now(played: Played) -> None:
    first, second = launch("a", "stay"), launch("b", "stay")
    want(played.pool, first)
    assert (await played.fork()).env["TP_SOCKET_IFNAME"] == "lo"
    played.pool.route = Route("eth9", "10.0.0.9")
    want(played.pool, first, second)
    assert (await played.fork()).env["TP_SOCKET_IFNAME"] == "eth9"


async def test_a_worker_whose_entry_cant_be_read_continues_and_that_is_logged_once(
    played: Played, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = launch("a", "stay")
    key = await played.run(wanted)
    message = Desired(version=2, workers=(DesiredWorker(launch=wanted),)).model_dump(mode="json")
    message["workers"][0]["launch"]["worker"]["role"] = "evaluator"
    with caplog.at_level(logging.WARNING, logger=worker_pool.__name__):
        for _ in range(2):
            played.pool.set_desired(Desired.model_validate(message))
            await played.reconciled()
    assert played.runs(key)
    (warning,) = caplog.messages
    assert "the master's entry for worker a/1/0 is ignored" in warning
    want(played.pool)
    assert await played.dies(key)


async def test_an_action_that_fails_holds_up_no_other(played: Played) -> None:
    broken, whole = launch("a", "stay"), launch("b", "stay")
    await played.run(broken)
    want(played.pool, broken, whole)
    shutil.rmtree(played.pool.workers[Key.of(broken)].workdir.path)  # where it would be asked to leave
    workdir = Workdir((await played.fork()).workdir)
    workdir.progress.write_text(ProgressLine(kind="joined", at=datetime.now(UTC)).model_dump_json() + "\n")
    await played.until(Key.of(whole), WorkerState.RUNNING)
    want(played.pool, broken, whole, stop=StopMode.DRAIN)
    async with asyncio.timeout(10):
        while not workdir.stop.exists():
            await asyncio.sleep(0.01)
    assert workdir.stop.read_text() == StopMode.DRAIN


async def test_a_worker_that_cant_be_told_the_port_of_its_gang_fails_with_the_reason(played: Played) -> None:
    wanted = launch("a", "stay", rank=1)
    key = await played.run(wanted)
    shutil.rmtree(played.pool.workers[key].workdir.path)
    want(played.pool, wanted.model_copy(update={"rendezvous_port": 4711}))
    assert await played.dies(key)
    played.exits(key, -9)
    assert "its gang's port could not be written" in await played.until(key, WorkerState.FAILED)


async def test_the_machine_is_checked_before_a_failed_worker_is_reported(played: Played) -> None:
    launches = [launch(job, "stay") for job in "ab"]
    succeeds, fails = [await played.run(one) for one in launches]
    want(played.pool, *launches)  # Otherwise the pool forgets the first one as soon as it has ended.
    played.exits(succeeds)
    await played.until(succeeds, WorkerState.SUCCEEDED)
    assert played.checked == []
    played.exits(fails, 1)
    await played.until(fails, WorkerState.FAILED)
    assert played.checked == [{WorkerState.SUCCEEDED, WorkerState.RUNNING}]


async def test_killing_all_spares_those_that_have_ended_and_the_first_reason_counts(played: Played) -> None:
    first, second, third = (launch(job, "stay") for job in "abc")
    done = await played.run(first)
    played.exits(done)
    await played.until(done, WorkerState.SUCCEEDED)
    for others, reason, state in (
        ((second,), "no route to its master", WorkerState.FAILED),
        ((second, third), "", WorkerState.STOPPED),
    ):
        want(played.pool, first, *others)
        await played.fork()
        key = Key.of(others[-1])
        played.pool.kill_all(reason)
        played.pool.kill_all("too late")
        assert await played.dies(key)
        played.exits(key, -9)
        assert reason in await played.until(key, state)
    assert await played.until(done, WorkerState.SUCCEEDED) == ""
    assert await played.until(Key.of(second), WorkerState.FAILED) == "no route to its master"
    assert played.pool.exits == {"succeeded": 1, "failed": 1, "stopped": 1}


async def test_a_pool_is_idle_when_the_master_has_no_more_use_for_its_workers(played: Played) -> None:
    assert played.pool.is_idle
    key = await played.run(launch("a", "stay", attempt=2))
    idle = asyncio.create_task(played.pool.wait_idle())
    folder = played.pool.workers[key].workdir.path
    played.exits(key)
    await played.until(key, WorkerState.SUCCEEDED)
    await played.reconciled()
    assert not idle.done()
    want(played.pool)
    async with asyncio.timeout(10):
        await idle
    assert played.pool.is_idle
    assert not folder.exists()
    assert played.pool.counts == {"starts": 1, "restarts": 1}
