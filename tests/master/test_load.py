"""The master's costs of a queue and a cluster: counts and CPU seconds, which a busy machine does not change much."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from tests.cpu_time import is_within

from rolecall.master import placer, scheduler
from rolecall.master.clock import Clock
from rolecall.master.placement import needs_of
from rolecall.master.program import Master
from rolecall.master.scheduler import schedule
from rolecall.master.seats import Flow
from rolecall.master.store import jobs
from rolecall.spec.job import JobSpec
from rolecall.spec.role import Role
from rolecall.spec.state import WorkerState

from .harness import ONE_TRAINER, Client, ManualClock, Node, line, make_node, make_settings, one_trainer, serving

WAITING = 1000
HOUSEKEEPING = {"leadership", "tokens", "cleaner", "verifier"}


@asynccontextmanager
async def on_master(data: Path, clock: Clock | None = None) -> AsyncGenerator[tuple[Client, Master]]:
    """A fresh master."""
    # Nodes may be silent for long: nothing is lost here, and who waits is woken by a change or not at all.
    settings = make_settings(data, heartbeat_s=30.0, node_timeout_s=600.0)
    async with serving(settings, clock=clock) as client:
        yield client, client.master


async def queue_up(
    client: Client,
    master: Master,
    count: int,
    roles: dict[Role, int] | Callable[[int], dict[Role, int]],
    *,
    begin: datetime | None = None,
) -> None:
    """Queue many jobs at once, past HTTP; from `begin` on, if it is given, one every 100 ms."""
    async with master.database.write() as connection:
        for number in range(count):
            own = roles(number) if callable(roles) else roles
            spec = JobSpec(id=f"toy-{number}", workload="toy", roles=own, params={"steps": 1, "learning_rate": 1})
            await jobs.add(connection, spec, begin + timedelta(milliseconds=100 * number) if begin else _now())
    master.waking.jobs(*(f"toy-{number}" for number in range(count)))
    await client.until(f"toy-{count - 1}", "queued", also=lambda job: job["waiting_for"])


@contextmanager
def counted(master: Master) -> Generator[list[str]]:
    """The statements that the database is given within the block, but for those that come at fixed times."""
    statements: list[str] = []
    database = master.database
    engines = [database._reader.sync_engine, database._writer.sync_engine]  # pyright: ignore[reportPrivateUsage]

    def note(*arguments: Any) -> None:
        task = asyncio.current_task()
        if task is None or task.get_name() not in HOUSEKEEPING:
            statements.append(arguments[2])

    for engine in engines:
        event.listen(engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        for engine in engines:
            event.remove(engine, "before_cursor_execute", note)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every assignment that placement tries."""
    found: list[int] = []
    fill = Flow.fill

    def counting(self: Flow, roles: Any) -> Any:
        found.append(1)
        return fill(self, roles)

    monkeypatch.setattr(Flow, "fill", counting)
    return found


@pytest.mark.slow
async def test_a_long_queue_costs_nothing_while_nothing_happens_and_a_fitting_job_passes_it(
    tmp_path: Path, searches: list[int]
) -> None:
    async with on_master(tmp_path) as (client, master):
        nodes = [await one_trainer(client, f"trainer-{number}", boot=f"m{number}") for number in range(3)]
        await queue_up(client, master, WAITING, {Role.TRAINER: 7})
        searches.clear()
        with counted(master) as statements:
            begun, waited_s = time.process_time(), 3.0
            await asyncio.sleep(waited_s)
            share = (time.process_time() - begun) / waited_s
        assert not searches
        assert not [one for one in statements if "UPDATE jobs" in one or "FROM nodes" in one]
        assert is_within(share, 0.2), f"{share:.0%} of a core while nothing happens"
        begun = time.monotonic()
        fits = (await client.submit(roles=ONE_TRAINER))["id"]
        await client.until(fits, "placed")
        took_s = time.monotonic() - begun
        assert took_s < 5, "1 s on a machine that has nothing else to do"
        assert len(searches) < 10, "one for each shape, not one for each job"
        document = await client.job("toy-7")
        assert document["waiting_for"].startswith("waiting for 7 trainer slots: the cluster has 6 in total")
        async with master.database.read() as connection:
            assert (await jobs.get(connection, "toy-7")).waiting_for == "waiting for 7 trainer slots"
        assert nodes


@pytest.mark.slow
async def test_the_backfill_windows_of_jobs_that_can_never_fit_cause_no_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def counting(*arguments: Any) -> Any:
        looks.append(1)
        return schedule(*arguments)

    monkeypatch.setattr(placer, "schedule", counting)

    clock = ManualClock()
    async with on_master(tmp_path, clock) as (client, master):
        await one_trainer(client)
        window = timedelta(seconds=master.settings.backfill_window_s)
        await queue_up(client, master, 200, {Role.TRAINER: 7}, begin=clock.now() - window)
        await master.placer.place()
        looks.clear()
        for _ in range(30):
            clock.advance(0.1)
            await master.placer.place()
        assert looks == []


@pytest.mark.slow
async def test_jobs_beyond_the_budget_of_a_pass_are_decided_by_the_next_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []

    def counting(*arguments: Any) -> Any:
        passes.append(1)
        return schedule(*arguments)

    monkeypatch.setattr(placer, "schedule", counting)
    monkeypatch.setattr(scheduler, "_BUDGET", 1)
    async with on_master(tmp_path) as (client, master):
        for role in (Role.TRAINER, Role.OBSERVER):
            node = Node(client, make_node(f"{role}-0", role, 32, cores=32))
            await node.register()
            await node.beat()
        passes.clear()
        await queue_up(client, master, 20, lambda number: {Role.TRAINER: 32 - number, Role.OBSERVER: 1 + number})
        assert 20 <= len(passes) < 40, "one search each"
        documents = [await client.job(f"toy-{number}") for number in range(20)]
        assert all("they share machines that hold 32 in total" in document["waiting_for"] for document in documents)
        passes.clear()
        for _ in range(3):
            await master.placer.place()
        assert not passes


async def test_a_new_job_at_the_end_of_the_queue_is_the_only_one_that_is_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[int] = []

    def noting(*arguments: Any) -> Any:
        known.append(len(arguments[-1].waiting))
        return schedule(*arguments)

    monkeypatch.setattr(placer, "schedule", noting)
    async with on_master(tmp_path) as (client, master):
        await one_trainer(client)
        await queue_up(client, master, 20, {Role.TRAINER: 7})
        await master.placer.place()
        for number, (priority, count) in enumerate([(0, 20), (0, 21), (1, 0), (0, 23)]):
            known.clear()
            job = (await client.submit(roles={"trainer": 7}, priority=priority))["id"]
            await client.until(job, "queued", also=lambda one: one["waiting_for"])
            assert known[0] == count, f"new job {number}"


@pytest.mark.slow
async def test_the_placement_rests_between_passes_however_often_it_is_woken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with on_master(tmp_path) as (client, master):
        await queue_up(client, master, 4, {Role.TRAINER: 7})
        place, passes = master.placer.place, list[int]()

        async def counting(*arguments: Any) -> float:
            passes.append(1)
            return await place(*arguments)

        monkeypatch.setattr(placer, "_REST_S", 0.05)
        monkeypatch.setattr(master.placer, "place", counting)
        begun = time.monotonic()
        while time.monotonic() < begun + 1.0:
            master.placer.wake()
            await asyncio.sleep(0.001)
        master.placer.wake()
        woken = len(passes)
        assert 2 <= woken <= (time.monotonic() - begun) / (4 * 0.05) + 2, "a rest for each of the four jobs"
        async with asyncio.timeout(5):
            while len(passes) == woken:  # What happens in a rest is placed after it.
                await asyncio.sleep(0.01)


async def test_figures_change_in_the_document_and_not_in_the_database(tmp_path: Path) -> None:
    async with on_master(tmp_path) as (client, master):
        node = await one_trainer(client)
        await client.submit(roles={"parameter-server": 0, "trainer": 2})
        await node.workers(2)
        await queue_up(client, master, 20, {Role.TRAINER: 2})
        assert (await client.job("toy-3"))["waiting_for"] == "waiting for 2 trainer slots: 0 of 2 are free"
        with counted(master) as statements:
            (first, _) = await node.beat()
            await node.say(first, WorkerState.SUCCEEDED, exit_code=0)
            await client.until("toy-3", "queued", also=lambda job: "1 of 2 is free" in job["waiting_for"])
        assert not [one for one in statements if one.startswith("UPDATE jobs SET waiting_for")]


async def test_a_reason_that_is_cleared_is_stored_again(tmp_path: Path) -> None:
    async with on_master(tmp_path) as (client, master):
        await one_trainer(client)
        await queue_up(client, master, 3, {Role.TRAINER: 7})
        why = (await client.job("toy-2"))["waiting_for"]
        assert why
        async with master.database.write() as connection:  # as after a late verification of its checkpoints
            await jobs.release(connection, await jobs.get(connection, "toy-2"), _now())
        assert (await client.job("toy-2"))["waiting_for"] is None
        master.waking.jobs("toy-2")
        await client.until("toy-2", "queued", also=lambda job: job["waiting_for"] == why)


@pytest.mark.slow
async def test_a_change_wakes_the_nodes_of_its_gang_and_costs_as_much_whatever_the_number_of_others(
    tmp_path: Path,
) -> None:
    few, many = [await _statements_of_a_change(tmp_path / f"{others}", others) for others in (4, 60)]
    assert not [one for one in many if "FROM nodes" in one and "WHERE" not in one]
    assert abs(len(many) - len(few)) < 20, "a loop may make one pass more or fewer in the meantime"


async def _statements_of_a_change(folder: Path, others: int) -> list[str]:
    """The statements after a change of a gang of three, with a pass of each loop and `others` more nodes."""
    clock = ManualClock()
    async with on_master(folder, clock) as (client, master):
        trainers = [
            await one_trainer(client, f"t-{number}", slots=1, boot=f"o{number}") for number in range(1 + others)
        ]
        gang = [await _server(client, number) for number in range(2)]
        job = (await client.submit(roles={"parameter-server": 2, "trainer": 1}))["id"]
        await client.until(job, "placed")
        (host,) = [node for node in trainers if await node.beat()]
        workers = {node.spec.name: (await node.beat())[0] for node in (*gang, host)}
        idle = [node for node in trainers if node is not host]
        clock.advance(2)  # Nobody is expected to call any more, until the master holds a call again.
        waiting = (*idle, gang[1], host)
        held = {node.spec.name: asyncio.create_task(node.beat(30.0)) for node in waiting}
        async with asyncio.timeout(20):
            while not all(master.presence.is_expected(node.spec.started) for node in waiting):
                await asyncio.sleep(0.02)
        with counted(master) as statements:
            await gang[0].say(workers[gang[0].spec.name], WorkerState.STARTING, rendezvous_port=4711)
            async with asyncio.timeout(20):
                met = [await held[node.spec.name] for node in (gang[1], host)]
            await master.reconciler.reconcile()
            await master.placer.place()
        assert {worker.launch.rendezvous_port for answer in met for worker in answer} == {4711}
        assert [name for name, call in held.items() if call.done()] == [gang[1].spec.name, host.spec.name]
        for call in held.values():
            call.cancel()
        return statements


async def _server(client: Client, number: int) -> Node:
    node = Node(client, make_node(f"server-{number}", Role.PARAMETER_SERVER, 1, boot=f"s{number}"))
    await node.register()
    await node.beat()
    return node


async def test_a_heartbeat_and_a_step_without_news_ask_for_no_transaction_that_writes(tmp_path: Path) -> None:
    async with on_master(tmp_path) as (client, master):
        node = await one_trainer(client)
        job = (await client.submit(roles=ONE_TRAINER))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        await client.until(job, "running")
        size = await node.progress(worker, line("first_step", step=1, metrics={"loss": 1.0}))
        await node.beat()
        async with _quiet(master):
            with counted(master) as statements:
                for _ in range(5):
                    await node.beat()
            assert statements == []
            with counted(master) as statements:
                await node.progress(worker, line("step", step=2, metrics={"loss": 0.5}), offset=size)
            assert [one for one in statements if not one.startswith(("SELECT", "BEGIN "))] in ([], ["BEGIN"])
            assert "BEGIN IMMEDIATE" not in statements
        assert (await client.job(job))["progress"]["step"] == 2


@asynccontextmanager
async def _quiet(master: Master) -> AsyncGenerator[None]:
    """While the loops of the master stand still, whose own statements would be counted."""
    still, goes_on = asyncio.Semaphore(0), asyncio.Event()

    async def stand_still(*_: object) -> float:
        still.release()
        await goes_on.wait()
        return 0.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(master.reconciler, "reconcile", stand_still)
        patch.setattr(master.placer, "place", stand_still)
        master.reconciler.wake()
        master.placer.wake()
        for _ in range(2):
            await still.acquire()
        try:
            yield
        finally:
            goes_on.set()


@pytest.mark.slow
async def test_a_stale_plan_is_not_committed(tmp_path: Path) -> None:
    """A node that restarts between the look and the commit is not given the workers that were planned for it."""

    async with on_master(tmp_path) as (client, master):
        node = await one_trainer(client)
        async with _quiet(master):
            await master.view.refresh()
            async with master.database.write() as connection:
                spec = JobSpec(id="toy-1", workload="toy", roles={Role.TRAINER: 1}, params={})
                job = await jobs.add(connection, spec, _now())
            cluster = master.placer._cluster_of(master.placer._offers())  # pyright: ignore[reportPrivateUsage]
            plan = cluster.seating(()).place(needs_of(job.roles))
            node.spec = node.spec.model_copy(update={"started": "second"})
            await node.enter()
            assert not await master.placer._errors.attempt("placing", master.placer._begin(job, plan))  # pyright: ignore
            assert (await client.job("toy-1"))["state"] == "queued"
            assert await node.beat() == []


def _now() -> datetime:
    return datetime.now(UTC)


@pytest.mark.parametrize("dry_run", [False, True])
async def test_the_master_answers_while_a_placement_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    begun, answered, in_time = threading.Event(), threading.Event(), list[bool]()

    def long_search(*arguments: Any) -> dict[str, Any]:
        begun.set()
        in_time.append(answered.wait(5))
        return schedule(*arguments)

    async with on_master(tmp_path) as (client, _):
        await one_trainer(client)
        monkeypatch.setattr(placer, "schedule", long_search)
        body = {"workload": "toy", "roles": ONE_TRAINER}
        call = asyncio.create_task(client.user("POST", "/jobs", json=body, params={"dry_run": dry_run}))
        assert await asyncio.to_thread(begun.wait, 20)
        assert (await client.http.get("/healthz")).is_success
        answered.set()
        assert (await call).is_success
    assert in_time
    assert all(in_time), "the search held up the event loop"
