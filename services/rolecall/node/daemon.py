"""The node's loops: one talks to the master, one makes what runs what should, one looks at the node itself, and one
attends each worker.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from pathlib import Path

from rolecall.node.attending import see_through
from rolecall.node.client import MasterClient, MasterRefuses, MasterUnreachable, NameTaken, ReportRefused
from rolecall.node.contact import Contact
from rolecall.node.examination import EXAMINE_EVERY_S, Examiner
from rolecall.node.fork_client import ForkClient
from rolecall.node.health import NodeHealth
from rolecall.node.housekeeping import keep_cache
from rolecall.node.network import Route, Way, find_way, has_address
from rolecall.node.reconcile import Action, Ask, Decline, Forget, Key, Kill, Start, TellPort, actions
from rolecall.node.shipping import Shipper
from rolecall.node.worker_process import WorkerProcess
from rolecall.retry import delays_s
from rolecall.settings import NodeSettings, read_worker
from rolecall.spec.errors import NotFound, SettingsError
from rolecall.spec.finding import Finding, Level
from rolecall.spec.fork import ForkRequest
from rolecall.spec.node import NodeSpec
from rolecall.spec.plan import WorkerLaunch
from rolecall.spec.state import WorkerState
from rolecall.spec.wire import Desired, DesiredWorker, Heartbeat, Registered
from rolecall.untrusted_files import delete_tree

_LOG = logging.getLogger(__name__)
_NAME_PATIENCE_S = 5.0
"""An earlier life of the same name is noticed to be over soon after its last call would have ended."""
_LOOK_S = 3.0
"""How long a node that enters again may be silent for its look at itself; a master's patience is longer."""
_TICK_S = 0.05


class Daemon:
    """One life of a node. `workers` is what it runs; `counts` is what it has done.

    `work` is a short name of the folder that has the workers' folders.
    """

    def __init__(
        self,
        settings: NodeSettings,
        spec: NodeSpec,
        route: Route,
        client: MasterClient,
        *,
        work: Path,
        forks: ForkClient,
        examiner: Examiner,
        health: NodeHealth,
    ) -> None:
        self.spec = spec
        self.findings: tuple[Finding, ...] = ()
        self.workers: dict[Key, WorkerProcess] = {}
        self.counts: Counter[str] = Counter()
        self.exits: Counter[str] = Counter()
        self.forks = forks
        self._settings = settings
        self._work = work
        self._route: Route = route
        self._client = client
        self._examiner = examiner
        self._health = health
        self._desired: tuple[DesiredWorker, ...] = ()
        self._spared: frozenset[Key] = frozenset()
        self._seen = -1
        self._heartbeat_s: float | None = None
        self._contact = Contact(settings.fence_s)
        self._shipper = Shipper(client, self._contact)
        self._lost_contact = False
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
            cache = keep_cache(self._settings.data / "cache", read_worker().cache_bytes)
            talk = (self._talk(), self._reconcile(), self._keep_examining(), cache)
            loops = [tasks.create_task(loop) for loop in talk]
            await self._told.wait()
            await self._drain()
            for loop in loops:
                loop.cancel()
            await self._leave()
            for task in (forking, *self._attendants):
                task.cancel()

    async def _drain(self) -> None:
        """Give the workers the grace time to leave, then kill what is left; the master hears of each end."""
        if not self.workers and not self._attendants:
            return
        _LOG.info("draining: %d workers may take %g s", len(self.workers), self._settings.stop_grace_s)
        self._idle.clear()
        leaving = {asyncio.ensure_future(event.wait()) for event in (self._idle, self._hurried)}
        await asyncio.wait(leaving, timeout=self._settings.stop_grace_s, return_when=asyncio.FIRST_COMPLETED)
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
        self._health.wait_for("its fork server, which imports torch")
        await self.forks.wait_ready()
        self._health.wait_for("the first answer of its master")
        delays, said = delays_s(), ""
        while True:
            try:
                await self._exchange()
                if said:
                    _LOG.info("the master is back")
                delays, said, self._lost_contact = delays_s(), "", False
                self._health.wait_for("")
            except MasterUnreachable as error:
                if isinstance(error, MasterRefuses) and not self._contact.was_made:
                    raise SettingsError(str(error)) from None
                self.counts["heartbeat_failures"] += 1
                self._lost_contact = True
                self._contact.failed(error, time.monotonic())
                self._fence(cut_off=error.cut_off or not has_address(self.spec.address))
                if (reason := f"the master is away: {error}") != said:
                    _LOG.warning("%s; trying again", reason)
                    self._health.wait_for(reason)
                said = reason
                await asyncio.sleep(next(delays))

    def _fence(self, *, cut_off: bool) -> None:
        """End the workers of a node that its master must have given up."""
        if (reason := self._contact.fence_reason(cut_off=cut_off, now=time.monotonic())) is None:
            return
        for worker in self.workers.values():
            if not (worker.actual.ended or worker.actual.killed):
                worker.kill(reason)

    async def _exchange(self) -> None:
        """One heartbeat, after a registration where the master does not know this life."""
        try:
            if self._lost_contact:
                await self._find_way_again()
            if self._heartbeat_s is None:
                await self._register()
                await self._look()
            await self._beat(self._heartbeat_s or 0.0)
        except ReportRefused as error:
            self._say_less(error)
        except NotFound as error:
            _LOG.warning("the master has forgotten this node (%s); registering again", error)
            self._heartbeat_s = None

    def _say_less(self, error: ReportRefused) -> None:
        """What workers wrote themselves is all of a report whose size or content this node doesn't decide."""
        shortened = [worker for worker in self.workers.values() if worker.drop_texts(str(error))]
        if not shortened:
            raise MasterUnreachable(f"the master refuses this node's report: {error}") from error
        _LOG.error("the master refuses this node's report (%s); %d failures go without texts", error, len(shortened))

    async def _find_way_again(self) -> None:
        """Who was cut off may come back by another interface, and is sent workers as soon as it is heard."""
        # Without a way there will be no heartbeat either, and that says why.
        with contextlib.suppress(OSError):
            self._follow(await find_way(self._settings.master_addr, self._settings.port))

    async def _register(self) -> None:
        registered = await self._enter()
        self._heartbeat_s, self._seen = registered.heartbeat_s, -1
        self._contact.node_timeout_s = registered.node_timeout_s
        _LOG.info("registered as %s with %s (%s)", self.spec.name, self._client.url, registered.master_version)

    async def _enter(self) -> Registered:
        """Register; give an earlier life of this name a moment to be noticed as over."""
        give_up, said = time.monotonic() + _NAME_PATIENCE_S, ""
        for delay in delays_s():
            try:
                return await self._client.register(self.spec)
            except NameTaken as error:
                if time.monotonic() > give_up:
                    raise SettingsError(str(error)) from None
                if not said:
                    _LOG.info("%s; trying again for %g s", error, _NAME_PATIENCE_S)
                    self._health.wait_for(str(error))
                said = str(error)
                await asyncio.sleep(delay)
        raise AssertionError("delays never end")

    async def _look(self) -> None:
        """See how the node is before it reports.

        The first time this takes as long as it takes: nobody should be sent here before. Later there may be workers,
        which the master must hear of; so it is told what was found before, and soon what is found later.
        """
        try:
            async with asyncio.timeout(_LOOK_S if self.findings else None):
                await self._examine()
        except TimeoutError:
            _LOG.warning("the node's look at itself takes more than %g s; reporting what it found before", _LOOK_S)

    async def _keep_examining(self) -> None:
        while True:
            await asyncio.sleep(EXAMINE_EVERY_S)
            if self._heartbeat_s is not None:
                try:
                    await self._examine()
                except Exception:  # noqa: BLE001 - a loop's tick: the next look is as good
                    _LOG.exception("the node could not be examined")

    async def _examine(self) -> None:
        """Look at the node; the next heartbeat tells, at once if something is otherwise than it was."""
        before = {(finding.check, finding.level) for finding in self.findings}
        self.findings, way = await self._examiner.examine(self.spec)
        for finding in self.findings:
            if finding.level is not Level.OK and (finding.check, finding.level) not in before:
                _LOG.warning("%s: %s; %s", finding.check, finding.message, finding.remedy)
        if {(finding.check, finding.level) for finding in self.findings} != before:
            self._news.set()
        if way is not None:
            self._follow(way)

    def _follow(self, way: Way) -> None:
        """If the network gave this node another address or interface, who is sent here from now on must know it."""
        if way.route == self._route:
            return
        before, now = (f"{route.address} ({route.interface})" for route in (self._route, way.route))
        _LOG.warning("this node moved from %s to %s; registering again", before, now)
        self._route = way.route
        address = {"address": way.route.address, "interface": way.route.interface}
        self.spec = self.spec.model_copy(update=address)
        self._heartbeat_s = None

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
            findings=(*self.findings, *self._contact.findings(time.monotonic())),
        )
        call = asyncio.ensure_future(self._client.heartbeat(self.spec.name, beat))
        news = asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait({call} if urgent else {call, news}, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                self._learn(call.result())
                self._contact.answered(time.monotonic())
        except BaseException:
            self._news.set()  # What this call should have told is still untold.
            raise
        finally:
            call.cancel()
            news.cancel()

    def _learn(self, desired: Desired) -> None:
        """What the master wants; a worker whose entry is of a newer release goes on as it is."""
        self._desired, self._seen = desired.workers, desired.version
        spared = {Key(one.job, one.attempt, one.rank): one.why for one in desired.unread}
        for key in spared.keys() - self._spared:
            _LOG.warning("the master's word on worker %s is ignored: this release can't read it: %s", key, spared[key])
        self._spared = frozenset(spared)

    async def _reconcile(self) -> None:
        while True:
            actual = {key: worker.actual for key, worker in self.workers.items()}
            for action in actions(self._desired, actual, self._settings.stop_grace_s, self._spared):
                try:
                    self._do(action)
                except Exception:  # noqa: BLE001 - a loop's tick: the next comparison tries again
                    _LOG.exception("%s failed", action)
            if not self.workers and not self._attendants:
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
                self._tell_port(self.workers[key], port)
            case Ask(key=key, mode=mode):
                self.workers[key].ask(mode)
            case Kill(key=key):
                self.workers[key].kill()
            case Forget(key=key):
                self.workers.pop(key).forget()

    def _tell_port(self, worker: WorkerProcess, port: int) -> None:
        try:
            worker.tell_port(port)
        except OSError as error:
            worker.kill(f"its gang's port could not be written to {error.filename}: {error.strerror}")

    def _adopt(self, launch: WorkerLaunch) -> WorkerProcess:
        worker = WorkerProcess(
            launch,
            self._settings.home,
            self._settings.worker_timeout_s,
            self._settings.log_bytes,
            self._news.set,
        )
        self.workers[worker.key] = worker
        return worker

    async def _attend(self, worker: WorkerProcess) -> None:
        """One worker's life. Whatever goes wrong with it, the node and its other workers go on."""
        self.counts["starts"] += 1
        self.counts["restarts"] += worker.launch.attempt > 1
        try:
            await see_through(worker, lambda: self._request(worker), self.forks, self._shipper, self.exits)
        except Exception as error:  # noqa: BLE001 - the last resort: a task that raises would end the daemon
            _LOG.exception("worker %s could not be attended", worker.key)
            if not worker.actual.ended:
                worker.finish(*worker.lost(f"the node could not attend the worker: {type(error).__name__}: {error}"))
        finally:
            worker.shipped()

    def _request(self, worker: WorkerProcess) -> ForkRequest:
        launch = worker.launch
        cache = self._settings.data / "cache"
        cache.mkdir(exist_ok=True)
        return ForkRequest(
            key=str(worker.key),
            launch=launch,
            workdir=worker.workdir.path,
            cache=cache,
            master_url=self._client.url,
            trust=self._client.trust,
            token=launch.token,
            env=self._route.environment
            | {
                "ROLE": launch.worker.role,
                "CUDA_VISIBLE_DEVICES": launch.worker.gpu or "",
                "TMPDIR": str(self._work.joinpath(*map(str, worker.key), worker.workdir.scratch.name)),
            },
        )


def clear_work(home: Path) -> None:
    """Delete what an earlier life of this node left; its processes died with it."""
    delete_tree(home / "work")
