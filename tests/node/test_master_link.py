"""A node's link to a master that the test plays on a real socket, by a clock that the test turns."""

import asyncio
import errno
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.clock import ManualClock
from tests.master.harness import make_node
from tests.node.harness import TOKEN, ScriptedMaster, launch, make_settings

from rolecall.network.routes import Route
from rolecall.node import master_link
from rolecall.node.client import MasterClient
from rolecall.node.contact import Contact
from rolecall.node.findings import GpuInventory
from rolecall.node.fork_client import ForkClient
from rolecall.node.health import NodeHealth
from rolecall.node.master_link import MasterLink
from rolecall.node.self_check import LastFindings, SelfCheck
from rolecall.node.worker_pool import WorkerPool
from rolecall.spec.errors import SettingsError
from rolecall.spec.finding import Level
from rolecall.spec.node import NodeSpec
from rolecall.spec.role import Role

FENCE_S = 60.0
SPEC = make_node("n", Role.TRAINER).model_copy(update={"address": "127.0.0.1", "interface": "lo"})
_T = TypeVar("_T")


@dataclass
class Linked:
    """A link with all that it works on. Nothing runs by itself."""

    link: MasterLink
    pool: WorkerPool
    last: LastFindings
    health: NodeHealth
    news: asyncio.Event
    clock: ManualClock
    tasks: asyncio.TaskGroup

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[asyncio.Task[None]]:
        """Let the link inform the master within the block."""
        task = self.tasks.create_task(self.link.run())
        try:
            yield task
        finally:
            task.cancel()

    async def waits_for(self, text: str) -> None:
        """Return when the node says that it waits for this."""
        async with asyncio.timeout(10):
            while text not in self.health.waiting_for:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def linked(master: ScriptedMaster, data: Path) -> AsyncGenerator[Linked]:
    settings = make_settings(master, data, fence_s=FENCE_S)
    client, contact, news, clock = (
        MasterClient(settings.master_url, lambda: TOKEN),
        Contact(FENCE_S),
        asyncio.Event(),
        ManualClock(),
    )
    health = NodeHealth("n", Role.TRAINER)
    last = LastFindings(SelfCheck(settings, client, GpuInventory(0, 0)), SPEC, news.set)
    try:
        async with asyncio.TaskGroup() as tasks:
            pool = WorkerPool(
                settings, client, contact, ForkClient(), Route("lo", "127.0.0.1"),
                work=data, tasks=tasks, changed=news.set,
                before_failure=last.check_machine, clock=clock,
            )  # fmt: skip
            link = MasterLink(
                settings, SPEC, client, contact, pool,
                last=last, health=health, news=news, clock=clock,
            )  # fmt: skip
            yield Linked(link, pool, last, health, news, clock, tasks)
            pool.cancel()
    finally:
        await client.close()


async def received(master: ScriptedMaster, what: Callable[[], _T]) -> _T:
    """Wait until `what` holds for what the master has received; return its value."""
    return await asyncio.to_thread(master.wait, what)


async def test_news_ends_a_call_that_the_master_holds(tmp_path: Path) -> None:
    master = ScriptedMaster()
    master.heartbeat_s = 30.0
    with master.serving():
        async with linked(master, tmp_path) as node, node.running():
            await received(master, lambda: master.beats and master.beats[-1].wait_s == 30.0)
            node.link.draining = True
            node.news.set()
            await received(master, lambda: any(beat.draining for beat in master.beats))
            assert next(beat for beat in master.beats if beat.draining).wait_s == 0.0


async def test_what_was_not_delivered_is_sent_as_soon_as_the_master_is_back_which_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    master = ScriptedMaster()
    master.heartbeat_s = 0.05
    with master.serving(), caplog.at_level(logging.INFO, logger=master_link.__name__):
        async with linked(master, tmp_path) as node, node.running():
            await received(master, lambda: master.beats and master.beats[-1].wait_s)
            master.refusal = 503
            await received(master, lambda: master.refused >= 2)
            await node.waits_for("the master is unavailable: ")
            beats, master.refusal = len(master.beats), None
            await received(master, lambda: len(master.beats) > beats + 1)
    assert [beat.wait_s for beat in master.beats[beats : beats + 2]] == [0.0, 0.05]
    *logged, away, back = [record.message for record in caplog.records if record.name == master_link.__name__]
    assert away.startswith("the master is unavailable: ")
    assert not any("unavailable" in message for message in logged)
    assert back == "the master is back"
    assert not node.health.waiting_for


async def test_a_master_that_forgot_the_node_gets_all_again(tmp_path: Path) -> None:
    master = ScriptedMaster()
    master.heartbeat_s = 0.05
    with master.serving():
        async with linked(master, tmp_path) as node, node.running():
            await received(master, lambda: master.beats and master.beats[-1].seen == 0)
            beats, master.has_forgotten = len(master.beats), True
            await received(master, lambda: len(master.specs) == 2 and len(master.beats) > beats)
    assert master.beats[beats].seen == -1


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), TimeoutError(errno.ETIMEDOUT, "NFS")])
async def test_a_check_of_the_machine_that_fails_leaves_the_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """It precedes the report of a failed worker, which must not get lost."""
    master = ScriptedMaster()

    async def fail(*_: Any) -> None:
        raise error

    with master.serving():
        async with linked(master, tmp_path) as node, node.running():
            await received(master, lambda: master.beats)
            findings = node.last.findings
            monkeypatch.setattr(SelfCheck, "run_machine", fail)
            await node.last.check_machine()
            assert node.last.findings == findings != ()
    assert "the check of the machine failed" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), TimeoutError(errno.ETIMEDOUT, "NFS")])
async def test_a_node_gets_no_workers_before_a_check_of_it_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    run, failures = SelfCheck.run, [error]

    async def fail_once(check: SelfCheck, spec: NodeSpec) -> Any:
        if failures:
            raise failures.pop()
        return await run(check, spec)

    monkeypatch.setattr(SelfCheck, "run", fail_once)
    monkeypatch.setattr(master_link, "_RETRY_S", 0.01)
    master = ScriptedMaster()
    with master.serving():
        async with linked(master, tmp_path) as node, node.running():
            await received(master, lambda: master.beats)
            assert master.beats[0].findings
    assert "the node's master link failed; trying again" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), TimeoutError(errno.ETIMEDOUT, "NFS")])
async def test_a_node_that_registers_again_and_fails_to_check_itself_reports_what_it_found_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The master must learn of the workers that run."""

    async def fail(*_: Any) -> None:
        raise error

    master = ScriptedMaster()
    master.heartbeat_s = 0.05
    with master.serving():
        async with linked(master, tmp_path) as node, node.running():
            await received(master, lambda: master.beats)
            monkeypatch.setattr(SelfCheck, "run", fail)
            beats, master.has_forgotten = len(master.beats), True
            await received(master, lambda: len(master.specs) == 2 and len(master.beats) > beats)
    assert master.beats[-1].findings == master.beats[0].findings != ()


async def test_a_node_waits_for_its_name_and_gives_up_in_the_end(tmp_path: Path) -> None:
    master = ScriptedMaster()
    with master.serving():
        for gives_up in (False, True):
            master.taken = {"n"}
            async with linked(master, tmp_path) as node:
                task = asyncio.create_task(node.link.run())
                await node.waits_for("the name n is taken")
                if gives_up:
                    node.clock.sleep(6.0)
                    with pytest.raises(SettingsError, match="ROLECALL_NODE_NAME"):
                        await task
                else:
                    master.taken = set()
                    await received(master, lambda: master.beats)
                    task.cancel()


async def next_failure(link: MasterLink) -> None:
    """Wait until the node has lost another call."""
    failures = link.heartbeat_failures
    async with asyncio.timeout(10):
        while link.heartbeat_failures == failures:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("refusal", "by_proxy"), [(401, True), (401, False), (422, False)])
async def test_a_node_whose_heartbeats_its_master_refuses_ends_its_workers(
    tmp_path: Path, refusal: int, by_proxy: bool
) -> None:
    """The master counts it as lost. A proxy that refuses says nothing about the master."""
    master = ScriptedMaster()
    master.heartbeat_s, master.refused_by_proxy = 0.05, by_proxy
    key = master.want(launch("refused", "stay"))
    with master.serving():
        async with linked(master, tmp_path) as node, node.running():
            reconciling = node.tasks.create_task(node.pool.reconcile())
            await received(master, lambda: key in master.reports)
            master.refusal = refusal
            await next_failure(node.link)
            for _ in range(2):
                node.clock.sleep(0.6 * FENCE_S)
                await next_failure(node.link)
            reconciling.cancel()
            assert node.pool.workers[key].actual.killed == (not by_proxy)


async def test_a_node_that_loses_its_address_while_the_master_is_unavailable_ends_its_workers(tmp_path: Path) -> None:
    master = ScriptedMaster()
    key = master.want(launch("lonely", "stay"))
    async with linked(master, tmp_path) as node, node.running():
        reconciling = node.tasks.create_task(node.pool.reconcile())
        with master.serving():
            await received(master, lambda: key in master.reports)
        await node.waits_for("the master is unavailable")
        node.clock.sleep(FENCE_S + 1)
        for address, killed in (("127.0.0.1", False), ("203.0.113.1", True)):
            node.link.spec = node.link.spec.model_copy(update={"address": address})
            await next_failure(node.link)
            assert node.pool.workers[key].actual.killed == killed
        reconciling.cancel()


async def test_a_report_that_the_master_refuses_as_a_whole_is_what_the_node_waits_for(tmp_path: Path) -> None:
    master = ScriptedMaster()
    master.heartbeat_s = 0.05
    with master.serving():
        async with linked(master, tmp_path) as node, node.running():
            await received(master, lambda: master.beats)
            master.max_bytes = 10
            await node.waits_for("the master refuses this node's report: the body is larger than 10 bytes")
            beats, master.max_bytes = len(master.beats), None
            await received(master, lambda: len(master.beats) > beats)


async def test_a_finding_of_another_level_is_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_link, "CHECK_EVERY_S", 0.05)
    master = ScriptedMaster()
    master.heartbeat_s = 30.0
    with master.serving():
        async with linked(master, tmp_path) as node, node.running():
            checking = node.tasks.create_task(node.link.keep_checking())
            await received(master, lambda: master.beats and master.beats[-1].wait_s == 30.0)
            beats, master.ahead_s = len(master.beats), 41.0
            await received(master, lambda: len(master.beats) > beats)
            (clock,) = [finding for finding in master.beats[-1].findings if finding.check == "clock"]
            assert clock.level is Level.ERROR
            checking.cancel()


async def test_a_node_leaves_the_cluster_that_it_is_in(tmp_path: Path) -> None:
    master = ScriptedMaster()
    async with linked(master, tmp_path) as node:
        with master.serving():
            await node.link.leave()
            assert master.left == []
            async with node.running():
                await received(master, lambda: master.beats)
            await node.link.leave()
            assert master.left == [("n", node.link.spec.started)]
        await node.link.leave()  # Nobody answers, which keeps no node from ending.
