"""The workers of this node: compares the desired with the running ones and acts on the difference."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from rolecall.kit.cache import make_owner_folder
from rolecall.logs import about
from rolecall.network.routes import Route
from rolecall.node.client import MasterClient
from rolecall.node.contact import Contact
from rolecall.node.fork_client import EndNotReported, ForkClient, ForkedWorker, ForkRefused, ForkServerDied
from rolecall.node.inspecting import measure_clock
from rolecall.node.reconcile import Action, Ask, Decline, Forget, Inspect, Key, Kill, SendPort, Start, actions
from rolecall.node.shipping import Shipper
from rolecall.node.worker_process import WorkerProcess
from rolecall.settings.node import NodeSettings
from rolecall.spec.fork import ForkRequest
from rolecall.spec.plan import WorkerLaunch
from rolecall.spec.state import WorkerState
from rolecall.spec.wire import Desired, DesiredWorker

_LOG = logging.getLogger(__name__)
_TICK_S = 0.05
_MAX_LOG_DELAY_S = 0.5
"""The maximum delay of the report of a worker's end by the rest of its log."""


class WorkerPool:
    """The workers until the master has recorded their ends, with counters of starts and exits.

    `work` is a short path of the folder that contains the workers' folders. New workers communicate over `route`.
    `changed` is called when there is news for the master, and `before_failure` before a failed worker is reported. Each
    worker has one of `tasks`.
    """

    def __init__(
        self,
        settings: NodeSettings,
        client: MasterClient,
        contact: Contact,
        forks: ForkClient,
        route: Route,
        *,
        work: Path,
        tasks: asyncio.TaskGroup,
        changed: Callable[[], None],
        before_failure: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
    ) -> None:
        self.workers: dict[Key, WorkerProcess] = {}
        self.counts: Counter[str] = Counter()
        self.exits: Counter[str] = Counter()
        self.forks = forks
        self.route = route
        self._settings = settings
        self._client = client
        self._shipper = Shipper(client, contact, clock)
        self._work = work
        self._tasks = tasks
        self._changed = changed
        self._before_failure = before_failure
        self._clock = clock
        self._desired: tuple[DesiredWorker, ...] = ()
        self._spared: frozenset[Key] = frozenset()
        self._idle = asyncio.Event()
        self._worker_tasks: set[asyncio.Task[None]] = set()
        self._answers: set[asyncio.Task[None]] = set()

    @property
    def is_idle(self) -> bool:
        """True if there is no worker, and no output of an earlier one to send."""
        return not self.workers and not self._worker_tasks

    async def wait_idle(self) -> None:
        """Return when the loop of `reconcile` finds the pool idle."""
        self._idle.clear()
        await self._idle.wait()

    def set_desired(self, desired: Desired) -> None:
        """Set the desired workers. A worker whose entry only a newer release can read continues unchanged."""
        self._desired = desired.workers
        spared = {Key(one.job, one.attempt, one.rank): one.why for one in desired.unread}
        for key in spared.keys() - self._spared:
            _LOG.warning(
                "the master's entry for worker %s is ignored, because this release can't read it: %s",
                key,
                spared[key],
                extra=about("desired_worker_unreadable", **key._asdict()),
            )
        self._spared = frozenset(spared)

    def kill_all(self, reason: str = "") -> None:
        """Kill every worker that still runs; without a `reason`, its end is not a failure."""
        for worker in self.workers.values():
            if not (worker.actual.ended or worker.actual.killed):
                worker.kill(reason)

    def drop_texts(self, why: str) -> int:
        """Shorten the failures that workers wrote and the master refuses; return their number."""
        return sum(worker.drop_texts(why) for worker in self.workers.values())

    def cancel(self) -> None:
        """Cancel the tasks of the remaining workers."""
        for task in self._worker_tasks | self._answers:
            task.cancel()

    async def reconcile(self) -> None:
        """Make the running workers the desired ones, until cancelled."""
        while True:
            actual = {key: worker.actual for key, worker in self.workers.items()}
            for action in actions(self._desired, actual, self._settings.stop_grace_s, self._spared):
                try:
                    self._do(action)
                except Exception:  # noqa: BLE001 - a loop's tick: the next comparison tries again
                    extra = about("reconcile_action_failed", **action.key._asdict())
                    _LOG.exception("%s of worker %s failed", type(action).__name__, action.key, extra=extra)
            if self.is_idle:
                self._idle.set()
            await asyncio.sleep(_TICK_S)

    def _do(self, action: Action) -> None:
        """Carry out one difference between the desired and the running workers."""
        match action:
            case Start(launch=launch):
                task = self._tasks.create_task(self._run(self._adopt(launch)))
                self._worker_tasks.add(task)
                task.add_done_callback(self._worker_tasks.discard)
            case Decline(launch=launch):
                self._adopt(launch).finish(WorkerState.STOPPED)
            case SendPort(key=key, port=port):
                try:
                    self.workers[key].send_port(port)
                except OSError as error:
                    reason = f"its gang's port could not be written to {error.filename}: {error.strerror}"
                    self.workers[key].kill(reason)
            case Inspect(key=key, inspection=inspection):
                self.workers[key].inspected.begin(inspection)
            case Ask(key=key, mode=mode):
                self.workers[key].ask(mode)
            case Kill(key=key):
                self.workers[key].kill()
            case Forget(key=key):
                self.workers.pop(key).forget()

    def _adopt(self, launch: WorkerLaunch) -> WorkerProcess:
        settings = self._settings
        worker = WorkerProcess(
            launch, settings.home, settings.worker_timeout_s, settings.log_bytes, self._changed, clock=self._clock
        )
        self.workers[worker.key] = worker
        return worker

    async def _run(self, worker: WorkerProcess) -> None:
        """Run one worker from start to end. An error must not affect the node and its other workers."""
        self.counts["starts"] += 1
        self.counts["restarts"] += worker.launch.attempt > 1
        try:
            await self._fork_and_ship(worker)
        except Exception as error:  # noqa: BLE001 - a task that raises would end the daemon
            _LOG.exception(
                "the node failed to run worker %s",
                worker.key,
                extra=about("worker_task_failed", **worker.key._asdict()),
            )
            if not worker.actual.ended:
                worker.finish(*worker.lost(f"the node failed to run the worker: {type(error).__name__}: {error}"))
        finally:
            worker.shipped()

    async def _fork_and_ship(self, worker: WorkerProcess) -> None:
        """Fork the worker, observe it, send its output, report its end and count it in `exits`.

        The gang and its slots depend on the report. It follows the worker's progress, which contains the result, but
        waits neither for a long log nor for progress that an available master fails to store.
        """
        exit_code: int | None = None
        try:
            worker.make_folder()
            process = await self.forks.fork(self._request(worker))
            worker.forked(process.pid)
            exit_code = await self._watch(worker, process)
            state, failure = worker.ended(exit_code)
        except (EndNotReported, ForkRefused, ForkServerDied, OSError) as error:
            state, failure = worker.lost(str(error))
        self.exits[state if failure is None else "failed"] += 1
        await self._shipper.ship_all(worker.progress)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MAX_LOG_DELAY_S):
                await self._shipper.ship_all(worker.log)
        if failure is not None:
            await self._before_failure()
        worker.finish(state, failure, exit_code)
        await self._shipper.ship_all(worker.timeline)
        await self._shipper.ship_all(worker.log)

    async def _watch(self, worker: WorkerProcess, process: ForkedWorker) -> int:
        """Observe the worker until it ends. Its output is sent in parallel, because the master may be unavailable."""
        shipping = asyncio.ensure_future(self._shipper.keep_shipping((worker.progress, worker.log)))
        try:
            while not process.ended.done():
                worker.observe()
                self._send_answer(worker, process.pid)
                await asyncio.wait({process.ended, shipping}, timeout=_TICK_S, return_when=asyncio.FIRST_COMPLETED)
                if shipping.done():
                    shipping.result()  # Raises: shipping ends only by an error.
            return process.ended.result()
        finally:
            shipping.cancel()
            await asyncio.wait({shipping})
            worker.observe()
            self._send_answer(worker, process.pid)

    def _send_answer(self, worker: WorkerProcess, pid: int) -> None:
        """Send the result of an inspection, if there is one: without retries, because the master waits only briefly."""
        if (finished := worker.inspected.finish(pid)) is None:
            return

        async def send() -> None:
            try:
                has_times = finished.kind == "timeline" and not finished.silent
                clock = await measure_clock(self._client, worker.launch.worker.node) if has_times else {}
                silent = {"silent": finished.silent} if finished.silent else {}
                await self._client.answer(worker.key, finished.id, finished.body, silent | clock)
            except Exception as error:  # noqa: BLE001 - a task that raises would end the daemon
                extra = about("inspection_answer_lost", **worker.key._asdict())
                _LOG.warning("the answer of worker %s to an inspection is lost: %s", worker.key, error, extra=extra)

        task = self._tasks.create_task(send())
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    def _request(self, worker: WorkerProcess) -> ForkRequest:
        launch = worker.launch
        cache = make_owner_folder(self._settings.caches, launch.owner, launch.job)
        return ForkRequest(
            key=str(worker.key),
            launch=launch,
            workdir=worker.workdir.path,
            data=self._settings.data,
            cache=cache,
            master_url=self._client.url,
            trust=self._client.trust,
            token=launch.token,
            env=self.route.environment
            | {
                "ROLE": launch.worker.role,
                "CUDA_VISIBLE_DEVICES": launch.worker.gpu or "",
                "TMPDIR": str(self._work.joinpath(*map(str, worker.key), worker.workdir.scratch.name)),
            },
        )
