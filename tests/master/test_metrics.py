"""A scrape of the master costs the same however large the jobs are, and holds up nobody."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Engine, event
from tests.running import accepted

from rolecall.master import exporter, metrics
from rolecall.master.placement import Seating
from rolecall.master.store import exports, jobs
from rolecall.spec.access import Scope
from rolecall.spec.job import Progress
from rolecall.spec.plan import WorkerPlan
from rolecall.spec.report import TimeSpent
from rolecall.spec.state import WorkerState

from .harness import (
    ONE_TRAINER,
    Client,
    ManualClock,
    failure,
    line,
    make_token,
    on_master,
    one_trainer,
    still_master,
    submit_as,
)


async def scraped(client: Client) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """The samples of `/metrics` by name and labels."""
    text = (await client.user("GET", "/metrics")).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for sample in samples:
        found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def by(
    found: dict[str, dict[frozenset[tuple[str, str]], float]], name: str, *labels: str
) -> dict[tuple[str, ...], float]:
    """The samples of one name, by the values of some of its labels."""
    return {tuple(dict(key)[label] for label in labels): value for key, value in found.get(name, {}).items()}


async def test_a_scrape_reads_no_parameters_and_computes_outside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    computed: list[threading.Thread] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)

    class Cluster(metrics.Cluster):
        def seating(self, taken: Sequence[WorkerPlan]) -> Seating:
            computed.append(threading.current_thread())
            return super().seating(taken)

    async with on_master(tmp_path) as client:
        node = await one_trainer(client, slots=1)
        job = (await client.submit(roles=ONE_TRAINER))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        await client.until(job, "running")
        await client.submit(roles=ONE_TRAINER)
        async with client.master.database.write() as connection:
            await jobs.set_progress(connection, job, Progress(step=5, metrics={"x" * 20_000: 1.0}))
        unread = await scraped(client)
        assert "rolecall_job_step" not in unread, "it is too long to be read"
        assert list(unread["rolecall_job_attempt"].values()) == [1.0]
        async with client.master.database.write() as connection:
            await jobs.set_progress(connection, job, Progress())
        before = await scraped(client)
        assert before["rolecall_job_step"] == {frozenset({("job", job), ("workload", "toy")}): 0.0}
        await node.progress(worker, line("step", step=7))
        monkeypatch.setattr(metrics, "Cluster", Cluster)
        event.listen(Engine, "before_cursor_execute", note)
        try:
            found = await scraped(client)
        finally:
            event.remove(Engine, "before_cursor_execute", note)
        assert list(found["rolecall_job_step"].values()) == [7.0]
        assert list(found["rolecall_queue_depth"].values()) == [1.0]
        assert 0 < next(iter(found["rolecall_queue_oldest_age_seconds"].values())) < 60
        assert sum(found["rolecall_slots"].values()) == 1
        assert sum(found["rolecall_slots_free"].values()) == 0
        loops = {dict(labels)["loop"]: idle_s for labels, idle_s in found["rolecall_loop_idle_seconds"].items()}
        assert loops.keys() == {"reconciler", "placer", "cleaner", "notifier", "tokens", "verifier"}
        assert max(loops.values()) < 60
    assert asked
    assert not [statement for statement in asked if "params" in statement]
    assert computed
    assert threading.main_thread() not in computed


async def test_the_pauses_of_a_loop_are_no_part_of_its_passes(tmp_path: Path) -> None:
    clock = ManualClock()
    async with still_master(tmp_path, clock) as master:
        clock.advance(60)
        loops = master.loops
        running = [asyncio.create_task(loop.run()) for loop in loops.values()]
        async with asyncio.timeout(20):
            while not all(loop.pulse.passes for loop in loops.values()):
                await asyncio.sleep(0.01)
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        assert {name: loop.pulse.busy_s for name, loop in loops.items()} == dict.fromkeys(loops, 0.0)


async def test_declared_metrics_and_results_stay_for_an_hour(tmp_path: Path) -> None:
    """Whatever a worker reports, only what its workload declares gets a series."""
    clock = ManualClock()
    async with on_master(tmp_path, clock=clock) as client:
        node = await one_trainer(client)
        job = (await client.submit(roles=ONE_TRAINER))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        await client.until(job, "running")
        spent = TimeSpent(steps=6.0, checkpoint=1.0)
        reported = {"loss": 0.5, "validation_auc": 0.75, "auc": 0.1, "trainer_0_loss": 0.2, 'x"} 1\n': 3.0}
        clock.advance(10)
        await node.progress(
            worker,
            line("first_step", step=1),
            line("step", step=2, metrics=reported, spent=spent),
            line("result", metrics={"test_auc": 0.9, "secret": 1.0}),
        )
        measured = {("loss", "train"): 0.5, ("auc", "validation"): 0.75}
        assert by(await scraped(client), "rolecall_job_metric", "metric", "split") == measured
        assert by(await scraped(client), "rolecall_job_result", "metric", "split") == {}
        await node.say(worker, WorkerState.SUCCEEDED, exit_code=0)
        await client.until(job, "succeeded")
        found = await scraped(client)
        assert by(found, "rolecall_job_metric", "metric", "split") == measured
        assert by(found, "rolecall_job_result", "metric", "split") == {("auc", "test"): 0.9}
        assert by(found, "rolecall_job_state", "job", "state") == {(job, "succeeded"): 1}
        assert by(found, "rolecall_job_goodput_ratio", "job") == {(job,): pytest.approx(0.6, abs=0.05)}
        lost = by(found, "rolecall_job_lost_seconds", "cause")
        assert lost["checkpoint",] == 1
        document = await client.job(job)
        assert document["goodput"] == by(found, "rolecall_job_goodput_ratio", "job")[job,]
        assert {(cause,): seconds for cause, seconds in document["lost_s"].items()} == lost
        assert by(found, "rolecall_job_step", "job") == {}, "it has ended"
        clock.advance(3601)
        found = await scraped(client)
        for name in ("metric", "result", "state", "goodput_ratio", "lost_seconds"):
            assert by(found, f"rolecall_job_{name}", "job") == {}, name


async def test_the_start_of_a_running_job_ends_with_its_first_step(tmp_path: Path) -> None:
    clock = ManualClock()
    async with on_master(tmp_path, clock=clock) as client:
        node = await one_trainer(client)
        job = (await client.submit(roles=ONE_TRAINER))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        await client.until(job, "running")
        await scraped(client)
        clock.advance(10)
        first = line("first_step", step=1, at=clock.now())
        await node.progress(worker, first, line("step", step=2, spent=TimeSpent()))
        clock.advance(10)
        lost = by(await scraped(client), "rolecall_job_lost_seconds", "cause")
        assert {(cause,): seconds for cause, seconds in (await client.job(job))["lost_s"].items()} == lost


async def test_only_the_newest_of_the_recently_ended_jobs_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MAX_ENDED", 2)
    async with on_master(tmp_path) as client:
        jobs = [(await client.submit(roles=ONE_TRAINER))["id"] for _ in range(3)]
        for job in jobs:
            assert (await client.user("POST", f"/jobs/{job}/cancel")).is_success
        states = by(await scraped(client), "rolecall_job_state", "job", "state")
        assert states == {(job, "cancelled"): 1 for job in jobs[1:]}
        monkeypatch.setattr(metrics, "_AMONG", 1)
        assert by(await scraped(client), "rolecall_job_state", "job").keys() == {(jobs[2],)}


async def test_no_owner_hides_the_ended_jobs_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_ENDED", 2)
    async with on_master(tmp_path) as client:
        alice, busy = [await make_token(client, name, Scope.SUBMIT) for name in ("alice", "busy")]
        ids: list[str] = []
        for token in (alice, busy, busy, busy):
            ids.append(accepted(await submit_as(client, token))["id"])
            assert (await client.call(token, "POST", f"/jobs/{ids[-1]}/cancel")).is_success
        assert by(await scraped(client), "rolecall_job_state", "job").keys() == {(ids[0],), (ids[3],)}


async def test_no_owner_delays_the_exports_of_others(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        alice, busy = [await make_token(client, name, Scope.SUBMIT) for name in ("alice", "busy")]
        ids: list[str] = []
        for token in (busy, busy, busy, alice):
            ids.append(accepted(await submit_as(client, token))["id"])
            assert (await client.call(token, "POST", f"/jobs/{ids[-1]}/cancel")).is_success
        since = client.master.clock.now() - exporter.KEPT
        async with client.master.database.read() as connection:
            assert await exports.due(connection, "mlflow", since, 2) == [ids[0], ids[3]]


async def test_the_class_of_a_failure_is_shown_and_nothing_that_a_user_chose(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        node = await one_trainer(client)
        job = (await client.submit(roles=ONE_TRAINER, max_restarts=0))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.FAILED, failure=failure("NonFiniteLoss: the loss is nan"), exit_code=1)
        await client.until(job, "failed")
        assert by(await scraped(client), "rolecall_job_failed", "job", "cause") == {(job, "NonFiniteLoss"): 1}
