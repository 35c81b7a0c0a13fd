"""The node's daemon: the link to the master, the pool of workers, the fork server and the cache."""

import asyncio
import contextlib
import logging
import time
from pathlib import Path

from rolecall.daemon_thread import run_in_daemon_thread
from rolecall.kit.cache import delete_shared_cache, evict_all
from rolecall.logs import about
from rolecall.network.routes import Route
from rolecall.node.client import MasterClient
from rolecall.node.contact import Contact
from rolecall.node.fork_client import ForkClient
from rolecall.node.health import NodeHealth
from rolecall.node.loops import keep_calling
from rolecall.node.master_link import MasterLink
from rolecall.node.self_check import LastFindings, SelfCheck
from rolecall.node.worker_pool import WorkerPool
from rolecall.settings.node import NodeSettings
from rolecall.settings.worker import read_worker
from rolecall.spec.node import NodeSpec

_EVICT_EVERY_S = 60.0
_RETRY_S = 2.0
_LOG = logging.getLogger(__name__)


class Daemon:
    """`work` is a short path of the folder that contains the workers' folders."""

    def __init__(
        self,
        settings: NodeSettings,
        spec: NodeSpec,
        route: Route,
        client: MasterClient,
        *,
        work: Path,
        forks: ForkClient,
        self_check: SelfCheck,
        health: NodeHealth,
    ) -> None:
        self.should_exit = asyncio.Event()
        self.force_exit = asyncio.Event()
        self._settings = settings
        self._health = health
        self._tasks = asyncio.TaskGroup()
        self._news = asyncio.Event()
        contact = Contact(settings.fence_s)
        last = LastFindings(self_check, spec, self._news.set)
        self.pool = WorkerPool(
            settings,
            client,
            contact,
            forks,
            route,
            work=work,
            tasks=self._tasks,
            changed=self._news.set,
            before_failure=last.check_machine,
            clock=time.monotonic,
        )
        self.link = MasterLink(
            settings,
            spec,
            client,
            contact,
            self.pool,
            last=last,
            health=health,
            news=self._news,
            clock=time.monotonic,
        )

    def stop(self) -> None:
        """Drain, then exit; at the second call, exit immediately."""
        (self.force_exit if self.should_exit.is_set() else self.should_exit).set()
        self.link.draining = True
        self._news.set()

    async def run(self) -> None:
        """Serve until `stop`. Raises `SettingsError` when the master refuses this node from the start."""
        async with self._tasks as tasks:
            forking = tasks.create_task(self.pool.forks.run())
            name = self.link.spec.name
            running = (
                self._keep_contact(),
                keep_calling(self.pool.reconcile, _RETRY_S, "reconciliation", node=name),
                self.link.keep_checking(),
                keep_calling(self._tend_caches, _EVICT_EVERY_S, "eviction", node=name),
            )
            loops = [tasks.create_task(loop) for loop in running]
            await self.should_exit.wait()
            await self._drain()
            for loop in loops:
                loop.cancel()
            await self.link.leave()
            forking.cancel()
            self.pool.cancel()

    async def _keep_contact(self) -> None:
        """Register when workers can be forked, and stay in contact with the master."""
        self._health.wait_for("its fork server, which imports torch")
        await self.pool.forks.wait_ready()
        self._health.wait_for("the first answer of its master")
        await self.link.run()

    async def _tend_caches(self) -> None:
        """Reduce the caches of prepared inputs to their maximum size, and delete the one of earlier releases."""
        await run_in_daemon_thread(evict_all, self._settings.caches, read_worker().cache_bytes)
        await run_in_daemon_thread(delete_shared_cache, self._settings.data / "cache")

    async def _drain(self) -> None:
        """Give the workers the grace time to leave, then kill the others. The master gets a report of each end."""
        if self.pool.is_idle:
            return
        count, grace_s = len(self.pool.workers), self._settings.stop_grace_s
        _LOG.info(
            "draining: %d workers have %g s", count, grace_s, extra=about("node_draining", node=self.link.spec.name)
        )
        leaving = {asyncio.ensure_future(wait) for wait in (self.pool.wait_idle(), self.force_exit.wait())}
        await asyncio.wait(leaving, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        for waiting in leaving:
            waiting.cancel()
        self.pool.kill_all()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.pool.wait_idle(), timeout=1.0)
