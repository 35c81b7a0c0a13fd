"""The node's loops: one talks to the master, one makes what runs what should, and one attends each worker."""

import asyncio
import contextlib
import logging
import shutil
from collections import Counter
from pathlib import Path

from rolecall import __version__
from rolecall.node.backoff import delays_s
from rolecall.node.client import MasterClient, MasterUnreachable
from rolecall.node.fork_client import ForkClient, ForkedWorker, ForkRefused, ForkServerDied
from rolecall.node.network import Route
from rolecall.node.reconcile import Action, Ask, Decline, Forget, Key, Kill, Start, TellPort, actions
from rolecall.node.worker_process import WorkerProcess
from rolecall.settings import NodeSettings
from rolecall.spec.errors import NotFound
from rolecall.spec.fork import ForkRequest
from rolecall.spec.node import NodeSpec
from rolecall.spec.plan import WorkerLaunch
from rolecall.spec.state import WorkerState
from rolecall.spec.token import attempt_token
from rolecall.spec.wire import DesiredWorker, Heartbeat

_LOG = logging.getLogger(__name__)
_TICK_S = 0.05
_SHIP_S = 0.25


class Daemon:
    """One life of a node. `workers` is what it runs; `counts` is what it has done."""

    def __init__(self, settings: NodeSettings, spec: NodeSpec, route: Route, client: MasterClient, forks: ForkClient):
        self.spec = spec
        self.workers: dict[Key, WorkerProcess] = {}
        self.counts: Counter[str] = Counter()
        self.exits: Counter[str] = Counter()
        self.forks = forks
        self._settings = settings
        self._route = route
        self._client = client
        self._desired: tuple[DesiredWorker, ...] = ()
        self._seen = -1
        self._heartbeat_s: float | None = None
        self._news = asyncio.Event()
        self._told = asyncio.Event()
        self._hurried = asyncio.Event()
        self._idle = asyncio.Event()
        self._attendants: set[asyncio.Task[None]] = set()
        self._tasks = asyncio.TaskGroup()

    def stop(self) -> None:
        """Drain and leave; told again, leave at once."""
        (self._hurried if self._told.is_set() else self._told).set()
        self._news.set()

    async def run(self) -> None:
        """Serve until told to stop. Raises `SettingsError` when the master refuses this node for good."""
        async with self._tasks as tasks:
            forking = tasks.create_task(self.forks.run())
            loops = [tasks.create_task(self._talk()), tasks.create_task(self._reconcile())]
            await self._told.wait()
            await self._drain()
            for loop in loops:
                loop.cancel()
            await self._leave()
            for task in (forking, *self._attendants):
                task.cancel()

    async def _drain(self) -> None:
        """Give the workers the grace time to leave, then kill what is left; the master hears of each end."""
        if not self.workers:
            return
        _LOG.info("draining: %d workers may take %g s", len(self.workers), self._settings.kill_grace_s)
        self._idle.clear()
        leaving = {asyncio.ensure_future(event.wait()) for event in (self._idle, self._hurried)}
        await asyncio.wait(leaving, timeout=self._settings.kill_grace_s, return_when=asyncio.FIRST_COMPLETED)
        for waiting in leaving:
            waiting.cancel()
        for worker in self.workers.values():
            worker.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout=1.0)

    async def _leave(self) -> None:
        try:
            if self._heartbeat_s is not None:
                await self._client.leave(self.spec.name)
        except MasterUnreachable as error:
            _LOG.warning("left without the master's knowledge: %s", error)

    async def _talk(self) -> None:
        """Keep the master informed, whatever becomes of it; workers go on meanwhile."""
        await self.forks.wait_ready()
        delays, said = delays_s(), ""
        while True:
            try:
                await self._exchange()
                if said:
                    _LOG.info("the master is back")
                delays, said = delays_s(), ""
            except MasterUnreachable as error:
                self.counts["heartbeat_failures"] += 1
                if (reason := str(error)) != said:
                    _LOG.warning("the master is away: %s; trying again", error)
                said = reason
                await asyncio.sleep(next(delays))

    async def _exchange(self) -> None:
        """One heartbeat, after a registration where the master does not know this life."""
        if self._heartbeat_s is None:
            await self._register()
        try:
            await self._beat(self._heartbeat_s or 0.0)
        except NotFound as error:
            _LOG.warning("the master has forgotten this node (%s); registering again", error)
            self._heartbeat_s = None

    async def _register(self) -> None:
        registered = await self._client.register(self.spec)
        self._heartbeat_s, self._seen = registered.heartbeat_s, -1
        _LOG.info("registered as %s with %s (%s)", self.spec.name, self._client.url, registered.master_version)
        if registered.master_version != __version__:
            _LOG.warning("the master has version %s, this node %s", registered.master_version, __version__)

    async def _beat(self, wait_s: float) -> None:
        """Report and learn. A call that waits is given up for a new one as soon as there is news.

        There is one call at a time, so that no older answer can overtake a newer one.
        """
        urgent = self._news.is_set()
        self._news.clear()
        beat = Heartbeat(
            started=self.spec.started,
            seen=self._seen,
            wait_s=0.0 if urgent else wait_s,
            workers=tuple(worker.report for worker in self.workers.values()),
            draining=self._told.is_set(),
        )
        call = asyncio.ensure_future(self._client.heartbeat(self.spec.name, beat))
        news = asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait({call} if urgent else {call, news}, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                desired = call.result()
                self._desired, self._seen = desired.workers, desired.version
        except BaseException:
            self._news.set()  # What this call should have told is still untold.
            raise
        finally:
            call.cancel()
            news.cancel()

    async def _reconcile(self) -> None:
        while True:
            actual = {key: worker.actual for key, worker in self.workers.items()}
            for action in actions(self._desired, actual, self._settings.kill_grace_s):
                try:
                    self._do(action)
                except Exception:  # noqa: BLE001 - a loop's tick: the next comparison tries again
                    _LOG.exception("%s failed", action)
            if not self.workers:
                self._idle.set()
            await asyncio.sleep(_TICK_S)

    def _do(self, action: Action) -> None:
        match action:
            case Start(launch=launch):
                attendant = self._tasks.create_task(self._attend(self._adopt(launch)))
                self._attendants.add(attendant)
                attendant.add_done_callback(self._attendants.discard)
            case Decline(launch=launch):
                self._adopt(launch).finish(WorkerState.STOPPED)
            case TellPort(key=key, port=port):
                self.workers[key].tell_port(port)
            case Ask(key=key, mode=mode):
                self.workers[key].ask(mode)
            case Kill(key=key):
                self.workers[key].kill()
            case Forget(key=key):
                self.workers.pop(key).forget()

    def _adopt(self, launch: WorkerLaunch) -> WorkerProcess:
        worker = WorkerProcess(launch, self._settings.data, self._settings.worker_timeout_s, self._news.set)
        self.workers[worker.key] = worker
        return worker

    async def _attend(self, worker: WorkerProcess) -> None:
        """One worker's life: fork it, watch it, send what it writes, report how it ended."""
        self.counts["starts"] += 1
        self.counts["restarts"] += worker.launch.attempt > 1
        exit_code: int | None = None
        try:
            worker.make_folder()
            process = await self.forks.fork(self._request(worker))
            worker.forked(process.pid)
            exit_code = await self._watch(worker, process)
            state, failure = worker.ended(exit_code)
        except (ForkRefused, ForkServerDied, OSError) as error:
            state, failure = worker.lost(str(error))
        self.exits[state if failure is None else "failed"] += 1
        while await self._ship(worker):
            pass
        worker.finish(state, failure, exit_code)

    async def _watch(self, worker: WorkerProcess, process: ForkedWorker) -> int:
        """Observe the worker until it ends. What it writes is sent beside, because the master may be away."""
        shipping = asyncio.ensure_future(self._keep_shipping(worker))
        try:
            while not process.ended.done():
                worker.observe()
                await asyncio.wait({process.ended}, timeout=_TICK_S)
            return process.ended.result()
        finally:
            shipping.cancel()
            await asyncio.wait({shipping})
            worker.observe()

    async def _keep_shipping(self, worker: WorkerProcess) -> None:
        while True:
            if not await self._ship(worker):
                await asyncio.sleep(_SHIP_S)

    async def _ship(self, worker: WorkerProcess) -> bool:
        """Send one piece of each stream, trying until it arrives; return whether there may be more."""
        for delay in delays_s():
            try:
                return any([await stream.ship(self._client) for stream in worker.streams])
            except MasterUnreachable:
                await asyncio.sleep(delay)
        raise AssertionError("delays never end")

    def _request(self, worker: WorkerProcess) -> ForkRequest:
        launch, token = worker.launch, self._settings.node_token.get_secret_value()
        cache = self._settings.data / "cache"
        cache.mkdir(exist_ok=True)
        return ForkRequest(
            key=str(worker.key),
            launch=launch,
            workdir=worker.workdir.path,
            cache=cache,
            master_url=self._client.url,
            token=attempt_token(token, launch.job, launch.attempt),
            env=self._route.environment | {"ROLE": launch.worker.role, "CUDA_VISIBLE_DEVICES": launch.worker.gpu or ""},
        )


def clear_work(data: Path) -> None:
    """Delete what an earlier life of this node left; its processes died with it."""
    shutil.rmtree(data / "work", ignore_errors=True)
