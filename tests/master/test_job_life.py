"""A job's life in any order of events: what users ask, what nodes report, what is lost. The real reconciler decides."""

import asyncio
import atexit
import shutil
from collections import Counter
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pytest
from fastapi import Response
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import update

from rolecall.master.access import Principal
from rolecall.master.api import files, jobs, nodes, submission
from rolecall.master.clock import Clock
from rolecall.master.leadership import Leadership
from rolecall.master.program import Master, open_master
from rolecall.master.store import schema
from rolecall.spec.access import Scope
from rolecall.spec.errors import Conflict
from rolecall.spec.job import JobDocument, JobOverview, JobRequest
from rolecall.spec.node import NodeSpec
from rolecall.spec.report import WorkerReport
from rolecall.spec.role import Role
from rolecall.spec.state import TRANSITIONS, JobState, WorkerState
from rolecall.spec.wire import Desired, Heartbeat

from .harness import CATALOGUE, failure, make_node, make_settings

SHAPES: list[dict[Role, int]] = [
    {Role.PARAMETER_SERVER: 0, Role.TRAINER: 1},
    {Role.PARAMETER_SERVER: 0, Role.TRAINER: 3},
    {Role.PARAMETER_SERVER: 1, Role.TRAINER: 2},
    {Role.PARAMETER_SERVER: 0, Role.TRAINER: 1, Role.OBSERVER: 1},
]
SPECS = [
    make_node("trainer-0", Role.TRAINER, 2),
    make_node("trainer-1", Role.TRAINER, 1, boot="m1"),
    make_node("observer-0", Role.OBSERVER, 1, boot="m1"),
    make_node("parameter-server-0", Role.PARAMETER_SERVER, 1, boot="m1"),
]
NODES = st.sampled_from(range(len(SPECS)))
MOST_JOBS, MOST_RESTARTS = 4, 1
USER = Principal("admin", frozenset({Scope.ADMIN}))
picks = st.integers(0, 99)


class JobLife(RuleBasedStateMachine):
    """One master, four nodes that the rules play, up to four jobs."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(self.stack.enter_context(TemporaryDirectory(prefix="rolecall-life-")))
        shutil.copytree(_template(), self.folder, dirs_exist_ok=True)
        self.starts = [0] * len(SPECS)
        self.jobs: list[str] = []
        self.launched: set[tuple[str, int, int, str]] = set()
        """Every worker that a node was ever asked to run: job, attempt, rank, node."""
        self.succeeded: set[str] = set()
        self.settled = True
        """Whether nothing has happened since the last pass."""
        self.run(self._open())

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.open = AsyncExitStack()
        self.stack = ExitStack()

    def teardown(self) -> None:
        for job in self.jobs:
            self._check_history(job)
        self.run(self.open.aclose())
        self.runner.close()
        self.stack.close()

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    @precondition(lambda self: len(self.jobs) < MOST_JOBS)
    @rule(shape=st.sampled_from(SHAPES), priority=st.integers(0, 2))
    def submit(self, shape: dict[Role, int], priority: int) -> None:
        request = JobRequest(workload="toy", roles=shape, priority=priority, max_restarts=MOST_RESTARTS)
        job: JobDocument = self.run(submission.submit_job(request, Response(), self.master, USER))
        self.jobs.append(job.id)
        self.settled = False

    @precondition(lambda self: self.jobs)
    @rule(action=st.sampled_from([jobs.cancel_job, jobs.pause_job, jobs.resume_job, jobs.retry_job]), pick=picks)
    def steer(self, action: Any, pick: int) -> None:
        with suppress(Conflict):
            self.run(action(self._job(pick), self.master, USER))
        self.settled = False

    @rule()
    def reconcile(self) -> None:
        self.run(self._pass())

    @rule(node=NODES)
    def beat(self, node: int) -> None:
        self.run(self._beat(node))

    @precondition(lambda self: self.launched)
    @rule(pick=picks, state=st.sampled_from(WorkerState), curable=st.booleans(), elsewhere=st.booleans())
    def report(self, pick: int, state: WorkerState, curable: bool, elsewhere: bool) -> None:
        """A worker's state, in any order, also of attempts long gone or from a node that never had the worker."""
        known = sorted(self.launched)
        job, attempt, rank, node = known[-1 - pick % len(known)]
        names = [spec.name for spec in SPECS]
        place = (names.index(node) + elsewhere) % len(names)
        self.run(self._beat(place, self._report(job, attempt, rank, state, curable=curable)))
        self.settled = False

    @precondition(lambda self: self.jobs)
    @rule(pick=picks, state=st.sampled_from([WorkerState.RUNNING, WorkerState.SUCCEEDED, WorkerState.STOPPED]))
    def report_gang(self, pick: int, state: WorkerState) -> None:
        """All workers of a job's current attempt in one state: the usual course."""
        document = self._document(self._job(pick))
        for place, spec in enumerate(SPECS):
            told = [
                self._report(document.id, newest.number, worker.rank, state)
                for newest in document.attempts[-1:]
                for worker in newest.workers
                if worker.node == spec.name
            ]
            if told:
                self.run(self._beat(place, *told))
        self.run(self._pass())

    @rule(node=NODES)
    def drain(self, node: int) -> None:
        self.run(self._beat(node, draining=True))
        self.settled = False

    @rule(node=NODES)
    def restart_node(self, node: int) -> None:
        self.run(self._leave(node))
        self.run(self._enter(node))
        self.settled = False

    @rule()
    def lose_all_nodes(self) -> None:
        """All are silent for longer than the timeout."""
        timeout_s, self.master.presence.timeout_s = self.master.presence.timeout_s, -1.0
        self.run(self._pass())
        self.master.presence.timeout_s = timeout_s

    @rule()
    def restart_master(self) -> None:
        self.run(self._reopen())

    @rule()
    def await_backoff(self) -> None:
        self.run(self._set(not_before=None))
        self.run(self._pass())

    @precondition(lambda self: self.jobs)
    @rule(pick=picks)
    def pass_deadline(self, pick: int) -> None:
        job = self._job(pick)
        if not self._document(job).state.ended:
            past = datetime.now(UTC) - timedelta(seconds=1)
            self.run(self._set(job, deadline_s=1.0, deadline_at=past))
            self.settled = False

    @invariant()
    def jobs_live_by_the_rules(self) -> None:
        listed = self.run(jobs.list_jobs(self.master, USER, [], [])).jobs
        documents = [self._document(job.id) for job in listed]
        assert [job.model_dump(exclude={"progress", "reason"}) for job in listed] == [
            job.model_dump(include=JobOverview.model_fields.keys() - {"progress", "reason"}) for job in documents
        ]
        for job in documents:
            self._check(job)
        live = [worker for job in documents for one in job.attempts for worker in one.workers if not worker.state.ended]
        held = Counter(worker.node for worker in live)
        assert all(held[spec.name] <= spec.slots for spec in SPECS), held

    def _check(self, job: JobDocument) -> None:
        assert [one.number for one in job.attempts] == list(range(1, len(job.attempts) + 1))
        for one in job.attempts[: -1 if job.state.holds_slots else None]:
            assert not one.state.holds_slots, (job.state, one)
            assert one.ended_at is not None
            assert all(worker.state.ended for worker in one.workers), (job.state, one)
        if job.state.holds_slots:
            assert job.attempts[-1].state is job.state
        if self.settled and job.state is JobState.STOPPING:
            assert not all(worker.state.ended for worker in job.attempts[-1].workers)
        assert job.id not in self.succeeded or job.state is JobState.SUCCEEDED
        if job.state is JobState.SUCCEEDED:
            self.succeeded.add(job.id)

    def _check_history(self, job: str) -> None:
        events = self.run(files.list_events(job, self.master)).events
        states = [JobState(event.kind) for event in events if event.kind != "worker"]
        assert all(after in TRANSITIONS[before] for before, after in pairwise(states)), states
        assert states[-1] is self._document(job).state

    async def _open(self) -> None:
        self.master: Master = await self.open.enter_async_context(_opened(self.folder))
        for place in range(len(SPECS)):
            await self._enter(place)

    async def _reopen(self) -> None:
        await self.open.aclose()
        await self._open()

    async def _enter(self, place: int) -> None:
        await nodes.register_node(self._spec(place), self.master)
        await self._beat(place)

    async def _leave(self, place: int) -> None:
        await nodes.remove_node(self._spec(place).name, self.master)
        self.starts[place] += 1

    async def _beat(self, place: int, *reports: WorkerReport, draining: bool = False) -> None:
        spec = self._spec(place)
        beat = Heartbeat(started=spec.started, workers=reports, draining=draining)
        answer = Desired.model_validate_json(bytes((await nodes.send_heartbeat(spec.name, beat, self.master)).body))
        launches = [worker.launch for worker in answer.workers]
        self.launched |= {(one.job, one.attempt, one.worker.rank, one.worker.node) for one in launches}

    async def _pass(self) -> None:
        await self.master.reconciler.reconcile()
        await self.master.placer.place()
        self.settled = True
        for place in range(len(SPECS)):
            await self._beat(place)

    async def _set(self, job: str | None = None, **values: Any) -> None:
        """Move what the clock would move."""
        query = update(schema.jobs).values(**values)
        async with self.master.database.write() as connection:
            await connection.execute(query if job is None else query.where(schema.jobs.c.id == job))
        self.master.waking.jobs(*self.jobs)

    def _spec(self, place: int) -> NodeSpec:
        return SPECS[place].model_copy(update={"started": f"{SPECS[place].name}-{self.starts[place]}"})

    def _report(self, job: str, attempt: int, rank: int, state: WorkerState, *, curable: bool = True) -> WorkerReport:
        now = datetime.now(UTC)
        values: dict[str, Any] = {"spawned_at": now, "pid": 1 + rank}
        values |= {"joined_at": now} if state in {WorkerState.RUNNING, WorkerState.SUCCEEDED} else {}
        values |= {"failure": failure(retryable=curable)} if state is WorkerState.FAILED else {}
        return WorkerReport(job=job, attempt=attempt, rank=rank, state=state, **values)

    def _job(self, pick: int) -> str:
        return self.jobs[pick % len(self.jobs)]

    def _document(self, job: str) -> JobDocument:
        return self.run(jobs.show_job(job, self.master))


def _opened(folder: Path) -> AbstractAsyncContextManager[Master]:
    settings = make_settings(folder, heartbeat_s=0.01)
    clock = Clock()
    return open_master(settings, CATALOGUE, Leadership(settings, clock), clock)


@cache
def _template() -> Path:
    """A data folder with a migrated database, which takes longer to make than to copy."""
    folder = Path(mkdtemp(prefix="rolecall-life-"))
    atexit.register(shutil.rmtree, folder)

    async def migrate() -> None:
        async with _opened(folder):
            pass

    asyncio.run(migrate())
    return folder


JobLife.TestCase.settings = settings(
    max_examples=8,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType] - its metaclass is untyped
)
TestJobLife = pytest.mark.slow(JobLife.TestCase)
