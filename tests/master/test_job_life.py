# pyright: standard
"""A job's life in any order of events: what users ask, what nodes report, what is lost. The real master decides.

CI runs the same few examples each time; CONTRIBUTING.md says how to run many others.
"""

import asyncio
import hashlib
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from fastapi import Response
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import update
from tests.conftest import is_thorough

from rolecall.master.api import attempts, deletion, jobs, nodes, submission
from rolecall.master.program import Master
from rolecall.master.storage_errors import LeadershipLost
from rolecall.master.store import schema
from rolecall.master.store.database import Database
from rolecall.settings.master import MasterSettings
from rolecall.spec.api import JobPage
from rolecall.spec.errors import Conflict, NotFound
from rolecall.spec.job import JobDocument, JobOverview, JobRequest, JobUpdate
from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.role import Role
from rolecall.spec.state import TRANSITIONS, JobState, WorkerState

from .harness import make_settings, verify_all
from .life import SPECS, USER, Worker, World

SHAPES: list[dict[Role, int]] = [
    {Role.PARAMETER_SERVER: 0, Role.TRAINER: 1},
    {Role.PARAMETER_SERVER: 0, Role.TRAINER: 3},
    {Role.PARAMETER_SERVER: 1, Role.TRAINER: 2},
    {Role.PARAMETER_SERVER: 0, Role.TRAINER: 1, Role.OBSERVER: 1},
]
ACTIONS = {"cancel": jobs.cancel_job, "pause": jobs.pause_job, "resume": jobs.resume_job, "retry": jobs.retry_job}
PATCHES: list[dict[str, Any]] = [
    {"priority": 2},
    {"name": "renamed", "priority": None},
    {"name": None, "labels": {"team": "a", "stage": "x"}},
    {"labels": {"team": None}},
    {"labels": None},
]
NODES = st.sampled_from(range(len(SPECS)))
MOST_JOBS, MOST_RESTARTS, KEPT = 4, 3, 2
REFUSALS = (Conflict, NotFound)
picks = st.integers(0, 99)

NewSettings = Callable[[Path], AbstractContextManager[MasterSettings]]
"""The settings of a master with this data folder and an empty database."""


class JobLife(RuleBasedStateMachine):
    """Masters, four nodes that the rules play, and up to four jobs."""

    new_settings: NewSettings

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.jobs: list[str] = []
        self.deleted: set[str] = set()
        """Jobs that a user deleted, or that are deleted as soon as they have ended."""
        self.ended: dict[str, JobDocument] = {}
        """Jobs that have ended, and that no user has retried since."""
        self.changed: dict[str, dict[str, Any]] = {}
        """The name, priority and labels that each job has by now."""
        self.step = 0
        self.whole: dict[str, set[tuple[int, int]]] = {}
        """Attempt and step of the checkpoints of each job that are recorded, and that no rule has damaged."""
        self.hidden: dict[Path, Path] = {}
        """Files that are out of sight, as if a mount was missing, and where they are meanwhile."""
        self.settled = True
        """True if nothing has happened since the last pass."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(self.stack.enter_context(TemporaryDirectory(prefix="rolecall-life-")))
        (self.folder / "data").mkdir()
        # Jobs are ordered by their ids, too, so random ones would give the same rules another course.
        ids = (hashlib.sha256(bytes([number])).hexdigest() for number in range(256))
        secrets = SimpleNamespace(token_hex=lambda size: next(ids)[: 2 * size])
        self.stack.enter_context(pytest.MonkeyPatch.context()).setattr(submission, "secrets", secrets)
        self.world = World(self.stack.enter_context(type(self).new_settings(self.folder / "data")))
        self.stack.callback(self.world.runner.close)
        self.stack.callback(lambda: self.run(self.world.close()))
        self.run(self.world.open())

    def teardown(self) -> None:
        with self.stack:
            for job in self.jobs:
                self._check_history(job)

    @property
    def master(self) -> Master:
        return self.world.master

    def run(self, coroutine: Any) -> Any:
        return self.world.runner.run(coroutine)

    # What users do.

    @precondition(lambda self: len(self.jobs) - len(self.deleted) < MOST_JOBS)
    @rule(shape=st.sampled_from(SHAPES), priority=st.integers(0, 2))
    def submit(self, shape: dict[Role, int], priority: int) -> None:
        job = self.run(_submit(self.master, shape, priority))
        self.jobs.append(job)
        self.changed[job] = {"name": "", "priority": priority, "labels": {}}
        self.settled = False

    @precondition(lambda self: self.jobs)
    @rule(action=st.sampled_from(sorted(ACTIONS)), pick=picks)
    def steer(self, action: str, pick: int) -> None:
        job = self._job(pick)
        with suppress(*REFUSALS):
            self.run(ACTIONS[action](job, self.master, USER))
            if action == "retry":
                assert job not in self.deleted
                del self.ended[job]
        self.settled = False

    @precondition(lambda self: self.jobs)
    @rule(pick=picks, patch=st.sampled_from(PATCHES))
    def change(self, pick: int, patch: dict[str, Any]) -> None:
        job = self._job(pick)
        with suppress(NotFound):
            self.run(jobs.change_job(job, JobUpdate(**patch), self.master, USER))
            self.changed[job] = _merged(self.changed[job], patch)
        self.settled = False

    @precondition(lambda self: self.jobs)
    @rule(pick=picks, force=st.booleans())
    def delete(self, pick: int, force: bool) -> None:
        job = self._job(pick)
        before = self._find(job)
        try:
            self.run(deletion.delete_job(job, self.master, USER, force=force))
        except NotFound:
            assert before is None
        except Conflict:
            assert before is not None
            assert not before.state.ended
            assert not force
        else:
            self.deleted.add(job)
            self.ended.pop(job, None)
        self.settled = False

    # What the master does, and what happens to it.

    @rule()
    def reconcile(self) -> None:
        self.run(self._pass())

    @rule()
    def clean(self) -> None:
        """Delete what is to be deleted. Of a deleted job that has ended, nothing stays."""
        self.run(self._pass())
        assert self.run(self.master.cleaner.clean())
        for job in self.deleted:
            if self._find(job) is None:
                assert self.run(self.world.rows(job)) == {}
                assert self.world.traces(job) == []

    @rule(seconds=st.sampled_from([16, 61]))
    def pass_time(self, seconds: int) -> None:
        self.run(self.world.pass_time(seconds))
        self.settled = False

    @rule()
    def restart_master(self) -> None:
        self.run(self.world.reopen())

    @rule()
    def take_over(self) -> None:
        """Another master leads from now on, and no gang notices."""
        before = self.run(self.world.rows())
        self.run(self.world.take_over())
        after = self.run(self.world.rows())
        assert before.pop("leadership") != after.pop("leadership")
        del before["nodes"], after["nodes"]  # The nodes' calls say whether they are draining.
        assert before == after

    @precondition(lambda self: self.world.former)
    @rule(pick=picks, node=NODES)
    def act_on_the_former_master(self, pick: int, node: int) -> None:
        """A master whose term is over writes nothing, whatever it is asked, and whatever its loops find."""
        former = self.world.former
        assert former is not None
        before = self.run(self.world.rows())
        with pytest.raises(LeadershipLost):
            self.run(_submit(former, SHAPES[0], 0))
        with pytest.raises(LeadershipLost):
            self.run(nodes.remove_node(SPECS[node].name, former))
        former.presence.timeout_s = -1.0
        files = self.world.all_files()
        for loop in (
            former.reconciler.reconcile,
            former.placer.place,
            lambda: verify_all(former),
            former.cleaner.clean,
        ):
            with suppress(LeadershipLost):
                self.run(loop())
        assert self.world.all_files() == files
        for call in self._calls_for(former, self._job(pick)) if self.jobs else ():
            with suppress(LeadershipLost, *REFUSALS):
                self.run(call())
        assert self.run(self.world.rows()) == before

    # What nodes and workers do.

    @rule(node=NODES)
    def beat(self, node: int) -> None:
        self.run(self.world.beat(node))

    @precondition(lambda self: self.world.launched)
    @rule(pick=picks, state=st.sampled_from(WorkerState), curable=st.booleans(), elsewhere=st.booleans())
    def report(self, pick: int, state: WorkerState, curable: bool, elsewhere: bool) -> None:
        """A worker's state, in any order, also of attempts long gone or from a node that never had the worker."""
        worker = self._worker(pick)
        names = [spec.name for spec in SPECS]
        place = (names.index(worker[-1]) + elsewhere) % len(names)
        self.run(self.world.beat(place, self.world.report(worker, state, curable=curable)))
        self.settled = False

    @precondition(lambda self: self.jobs)
    @rule(
        pick=picks,
        state=st.sampled_from([WorkerState.RUNNING, WorkerState.SUCCEEDED, WorkerState.FAILED, WorkerState.STOPPED]),
        accuses=st.booleans(),
    )
    def report_gang(self, pick: int, state: WorkerState, accuses: bool) -> None:
        """All workers of a job's current attempt in one state: the usual course."""
        self._report_gang(self._job(pick), state, accuses=accuses)

    @precondition(lambda self: self.world.launched)
    @rule(pick=picks, is_live=st.booleans(), count=st.integers(1, KEPT + 1), keep=st.booleans())
    def checkpoint(self, pick: int, is_live: bool, count: int, keep: bool) -> None:
        """A worker's log and checkpoints; also of an attempt that is over, or of a job that is deleted."""
        live = [one for one in map(self._find, self.jobs) if one is not None and one.state.holds_slots]
        job, attempt, rank, _ = self._worker(pick)
        if is_live and live:
            chosen = live[pick % len(live)]
            job, attempt, rank = chosen.id, chosen.attempts[-1].number, 0
        for place in range(count):
            self.step += 1
            with suppress(*REFUSALS):
                self.run(self.world.print(job, attempt, rank, self.master))
                self.run(self._record(self.master, job, attempt, keep=keep and place == 0))
                document = self._document(job)
                assert document.state.holds_slots
                assert document.attempts[-1].number == attempt
                self.whole.setdefault(job, set()).add((attempt, self.step))

    @precondition(lambda self: self.whole)
    @rule(pick=picks)
    def accuse(self, pick: int) -> None:
        """An attempt fails, the next one says that its checkpoint is damaged, and the master has time to read it."""
        job = self._job(pick)
        self._report_gang(job, WorkerState.FAILED)
        self.run(self._set(not_before=None))
        self.run(self._pass())
        self._report_gang(job, WorkerState.FAILED, accuses=True)
        self.run(self.world.pass_time(61))
        self.settled = False

    @precondition(lambda self: self.whole)
    @rule(pick=picks, place=st.integers(0, KEPT - 1), how=st.sampled_from(["gone", "short", "changed"]))
    def damage(self, pick: int, place: int, how: str) -> None:
        """Damage a checkpoint, but never the last whole one of the newest, for which newer ones make no room."""
        job = self._job(pick)
        trusted = [one.manifest for one in self.run(self.world.recorded(job)) if one.verify_at is None]
        sound = [one for one in trusted[:KEPT] if _key(one) in self.whole.get(job, ())]
        if len(sound) < 2:
            return
        file = self.world.files(job, sound[place])[0]
        body = file.read_bytes()
        file.write_bytes(body[1:] if how == "short" else b"?" * len(body))
        if how == "gone":
            file.unlink()
        self.whole[job].discard(_key(sound[place]))

    @precondition(lambda self: self.whole)
    @rule(pick=picks, place=st.integers(0, KEPT - 1))
    def hide(self, pick: int, place: int) -> None:
        """A part of a checkpoint is out of sight for a while."""
        job = self._job(pick)
        for one in self.run(self.world.recorded(job))[place : place + 1]:
            file = self.world.files(job, one.manifest)[-1]
            if file.exists():
                self.hidden[file] = file.rename(self.folder / uuid.uuid4().hex)

    @precondition(lambda self: self.hidden)
    @rule()
    def show(self) -> None:
        """The files that were out of sight are back."""
        for job in self.jobs:
            for one in self.run(self.world.recorded(job)):
                for file in self.world.files(job, one.manifest):
                    if file in self.hidden:
                        self.hidden.pop(file).rename(file)
        self.hidden.clear()

    @rule(node=NODES)
    def drain(self, node: int) -> None:
        self.run(self.world.beat(node, draining=True))
        self.settled = False

    @rule(node=NODES)
    def restart_node(self, node: int) -> None:
        self.run(self.world.leave(node))
        self.run(self.world.enter(node))
        self.settled = False

    @rule()
    def lose_all_nodes(self) -> None:
        """All are silent for longer than the timeout."""
        timeout_s, self.master.presence.timeout_s = self.master.presence.timeout_s, -1.0
        self.run(self._pass())
        self.master.presence.timeout_s = timeout_s

    @rule()
    def await_backoff(self) -> None:
        self.run(self._set(not_before=None))
        self.run(self._pass())

    @precondition(lambda self: self.jobs)
    @rule(pick=picks)
    def pass_deadline(self, pick: int) -> None:
        job = self._job(pick)
        found = self._find(job)
        if found is not None and not found.state.ended:
            past = self.world.clock.now() - timedelta(seconds=1)
            self.run(self._set(job, deadline_s=1.0, deadline_at=past))
            self.settled = False

    # What is true at any time.

    @invariant()
    def jobs_live_by_the_rules(self) -> None:
        response = self.run(jobs.list_jobs(self.master, USER, [], []))
        assert isinstance(response, Response)
        listed = JobPage.model_validate_json(bytes(response.body)).jobs
        documents = [self._document(job.id) for job in listed]
        assert [job.model_dump(exclude={"progress", "reason"}) for job in listed] == [
            job.model_dump(include=JobOverview.model_fields.keys() - {"progress", "reason"}) for job in documents
        ]
        for job in documents:
            self._check(job)
        live = [worker for job in documents for one in job.attempts for worker in one.workers if not worker.state.ended]
        held = Counter(worker.node for worker in live)
        assert all(held[spec.name] <= spec.slots for spec in SPECS), held

    @invariant()
    def what_is_deleted_is_hidden_and_all_else_is_there(self) -> None:
        for job in self.jobs:
            found = self._find(job)
            assert found is not None or job in self.deleted
            assert found is None or job not in self.deleted or not found.state.ended

    @invariant()
    def a_whole_checkpoint_is_never_the_last_to_go(self) -> None:
        for job, whole in self.whole.items():
            if job in self.deleted:
                continue
            known = {_key(one.manifest): one.manifest for one in self.run(self.world.recorded(job))}
            whole.intersection_update(known)
            assert whole, known
            for one in (known[key] for key in whole):
                assert self.world.is_whole(job, one) or self.hidden.keys() & set(self.world.files(job, one))

    def _report_gang(self, job: str, state: WorkerState, *, accuses: bool = False) -> None:
        document = self._find(job)
        newest = document.attempts[-1:] if document else ()
        gang = [(job, one.number, worker.rank, worker.node) for one in newest for worker in one.workers]
        for place, spec in enumerate(SPECS):
            own = [worker for worker in gang if worker[-1] == spec.name]
            if own:
                self.run(self.world.beat(place, *(self.world.report(one, state, accuses=accuses) for one in own)))
        self.run(self._pass())

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
        changeable = self.changed[job.id]
        assert job.model_dump(include={*changeable}) == changeable
        if job.state.ended:
            before = self.ended.setdefault(job.id, job)
            assert job.model_dump(exclude={*changeable}) == before.model_dump(exclude={*changeable})
        else:
            assert job.id not in self.ended

    def _check_history(self, job: str) -> None:
        """No transition was illegal. The store has the events of a job until it is deleted."""
        found = self.run(self.world.rows(job)).get("events", [])
        if found:
            kinds = [row[_KIND] for row in sorted(found)]  # by their ids
            states = [JobState(kind) for kind in kinds if kind in set(JobState)]
            assert all(after in TRANSITIONS[before] for before, after in pairwise(states)), states
            assert job in self.deleted or states[-1] is self._document(job).state

    async def _pass(self) -> None:
        await self.master.reconciler.reconcile()
        await self.master.placer.place()
        self.settled = True
        for place in range(len(SPECS)):
            await self.world.beat(place)

    async def _set(self, job: str | None = None, **values: Any) -> None:
        """Move what the clock would move."""
        query = update(schema.jobs).values(**values)
        async with self.master.database.write() as connection:
            await connection.execute(query if job is None else query.where(schema.jobs.c.id == job))
        self.master.waking.jobs(*self.jobs)

    async def _record(self, master: Master, job: str, attempt: int, *, keep: bool = False) -> None:
        manifest = await self.world.upload(job, attempt, self.step, master)
        await attempts.record_checkpoint(job, attempt, manifest.model_copy(update={"keep": keep}), master)

    def _calls_for(self, master: Master, job: str) -> Iterator[Callable[[], Any]]:
        """Every call that changes a job."""
        for action in ACTIONS.values():
            yield lambda action=action: action(job, master, USER)
        yield lambda: jobs.change_job(job, JobUpdate(priority=7), master, USER)
        yield lambda: deletion.delete_job(job, master, USER, force=True)
        for worker in sorted(self.world.launched):
            if worker[0] == job:
                place = [spec.name for spec in SPECS].index(worker[-1])
                reported = self.world.report(worker, WorkerState.FAILED)
                yield lambda place=place, reported=reported: self.world.beat(place, reported, master=master)
                yield lambda attempt=worker[1]: self._record(master, job, attempt)

    def _job(self, pick: int) -> str:
        return self.jobs[pick % len(self.jobs)]

    def _worker(self, pick: int) -> Worker:
        known = sorted(self.world.launched)
        return known[-1 - pick % len(known)]

    def _document(self, job: str) -> JobDocument:
        return self.run(jobs.show_job(job, self.master))

    def _find(self, job: str) -> JobDocument | None:
        with suppress(NotFound):
            return self._document(job)
        return None


_KIND = [column.name for column in schema.events.columns].index("kind")


async def _submit(master: Master, shape: dict[Role, int], priority: int) -> str:
    request = JobRequest(
        workload="toy",
        roles={role: count for role, count in shape.items()},
        priority=priority,
        max_restarts=MOST_RESTARTS,
    )
    job = await submission.submit_job(request, Response(), master, USER)
    assert isinstance(job, JobDocument)
    return job.id


def _key(manifest: CheckpointManifest) -> tuple[int, int]:
    return manifest.attempt, manifest.step


def _merged(before: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """By the rules of RFC 7396, but that null is the default of what every job has."""
    defaults = {"name": "", "priority": 0, "labels": {}}
    after = before | {name: defaults[name] if value is None else value for name, value in patch.items()}
    if patch.get("labels"):
        labels = before["labels"] | patch["labels"]
        after["labels"] = {name: value for name, value in labels.items() if value is not None}
    return after


@contextmanager
def on_sqlite(data: Path) -> Generator[MasterSettings]:
    yield make_settings(data, heartbeat_s=0.01, keep_checkpoints=KEPT)


def on_postgresql(server: str) -> NewSettings:
    """Databases on this server, which are copies of one with empty tables."""
    template = f"life_{uuid.uuid4().hex}"
    own = server.rpartition("/")[0]

    async def migrate() -> None:
        database = Database(f"{own}/{template}")
        await database.migrate()
        await database.close()

    @contextmanager
    def new_settings(data: Path) -> Generator[MasterSettings]:
        name = f"life_{uuid.uuid4().hex}"
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")  # type: ignore[arg-type]
            yield make_settings(data, database_url=f"{own}/{name}", heartbeat_s=0.01, keep_checkpoints=KEPT)
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[arg-type]

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {template}")  # type: ignore[arg-type]
    # The state machine's rules are synchronous and have a loop of their own, so no test that awaits this can run it.
    asyncio.run(migrate())
    return new_settings


def _live(new_settings: NewSettings, examples: int) -> None:
    machine = type("JobLife", (JobLife,), {"new_settings": staticmethod(new_settings)})
    checks: Any = {"suppress_health_check": list(HealthCheck), "deadline": None}
    always_the_same: Any = {"derandomize": True, "database": None, "phases": [Phase.generate]}
    if is_thorough():
        run_state_machine_as_test(machine, settings=settings(**checks, stateful_step_count=100))
    else:
        chosen = settings(**checks, **always_the_same, max_examples=examples, stateful_step_count=60)
        run_state_machine_as_test(machine, settings=chosen)


@pytest.mark.slow
def test_a_jobs_life_on_sqlite() -> None:
    _live(on_sqlite, 12)


@pytest.mark.slow
def test_a_jobs_life_on_postgresql(postgres_url: str) -> None:
    _live(on_postgresql(postgres_url), 4)
