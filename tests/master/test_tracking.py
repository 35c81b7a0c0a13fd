"""Jobs in TensorBoard's event files and on an MLflow tracking server, written by a real master."""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from tests.trackers.test_tensorboard import scalars

from rolecall.master.exporter import Accepted
from rolecall.master.tracking import TrackerPlace, TrackerTarget
from rolecall.settings.child_environments import for_nodes, for_workers
from rolecall.spec.api import Checkpoint, Series
from rolecall.spec.job import JobDocument
from rolecall.spec.state import WorkerState

from .harness import Client, line, on_master, one_trainer

pytestmark = pytest.mark.slow

ONE = {"roles": {"parameter-server": 0, "trainer": 1}}


def step(number: int) -> Any:
    return line("step", step=number, metrics={"loss": number / 2})


async def recorded(client: Client, job: str, kind: str) -> str:
    """The message of the event that says that the ended job is exported."""
    async with asyncio.timeout(20):
        while True:
            events = (await client.user("GET", f"/jobs/{job}/events")).json()["events"]
            if found := [one["message"] for one in events if one["kind"] == kind]:
                return found[0]
            await asyncio.sleep(0.05)


def runs(uri: str) -> list[Run]:
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("mine")
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


def losses(uri: str, run: Run) -> list[tuple[int, float]]:
    return [(one.step, one.value) for one in MlflowClient(uri).get_metric_history(run.info.run_id, "loss")]


async def test_a_job_is_written_while_it_runs_and_once(tmp_path: Path) -> None:
    uri, folder = f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "events"
    given: dict[str, Any] = {"mlflow_uri": uri, "mlflow_experiment": "mine", "tensorboard_dir": folder}
    async with on_master(tmp_path / "master", **given) as client:
        node = await one_trainer(client)
        job = (await client.submit(**ONE, name="first"))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        await node.progress(worker, step(1), step(2))
        await client.until(job, "running")
        exporters = client.master.exporters
        for name in ("mlflow", "tensorboard"):
            assert await exporters[name].export_due()
        (run,) = runs(uri)
        assert (run.info.run_name, run.info.status) == ("first", "RUNNING")
        assert losses(uri, run) == [(1, 0.5), (2, 1.0)]
        own = folder / job / "attempt-1/trainer-0"
        async with asyncio.timeout(20):
            while [one[:3] for one in scalars(own)] != [("loss", 1, 0.5), ("loss", 2, 1.0)]:
                await asyncio.sleep(0.1)

    async with on_master(tmp_path / "master", **given) as client:  # It knows nothing of what the one before wrote.
        node = await one_trainer(client)
        await node.progress(worker, step(1), step(2), step(3))
        await node.say(worker, WorkerState.SUCCEEDED)
        await client.until(job, "succeeded")
        exporters = client.master.exporters
        for name in ("mlflow", "tensorboard"):
            assert await exporters[name].export_due()
        assert await recorded(client, job, "mlflow") == f"metrics written to experiment 'mine' of {uri}"
        assert await recorded(client, job, "tensorboard") == f"metrics written to {folder}"
        scraped = (await client.user("GET", "/metrics")).text
        assert 'rolecall_exports_total{outcome="accepted",target="mlflow"}' in scraped
    (run,) = runs(uri)
    assert run.info.status == "FINISHED"
    assert losses(uri, run) == [(1, 0.5), (2, 1.0), (3, 1.5)]
    assert [at for _, at, _, _ in scalars(own)] == [1, 2, 3]


async def test_hostile_metrics_fail_no_export(tmp_path: Path) -> None:
    uri, folder = f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "events"
    given: dict[str, Any] = {"mlflow_uri": uri, "mlflow_experiment": "mine", "tensorboard_dir": folder}
    names = {"at": 1.0, "step": math.nan, "../up": 2.0, "loss": math.inf, "x" * 190: 1e308, "epoch": 3.0, "good": 0.5}
    async with on_master(tmp_path / "master", **given) as client:
        node = await one_trainer(client)
        job = (await client.submit(**ONE))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        without_step = line("step", metrics={"loss": 1.0}, at="1960-01-01T00:00:00Z")
        await node.progress(worker, line("step", step=2**31, metrics=names, at="2600-01-01T00:00:00Z"), without_step)
        await node.say(worker, WorkerState.SUCCEEDED)
        await client.until(job, "succeeded")
        for name in ("mlflow", "tensorboard"):
            assert await client.master.exporters[name].export_due()
            await recorded(client, job, name)
    (run,) = runs(uri)
    assert run.data.metrics["good"] == 0.5
    assert not [path for path in folder.rglob("*") if "up" in path.name]


class GrowingTracker:
    """A tracker during whose calls the job reports another step."""

    def __init__(self, report: Callable[[], None]) -> None:
        self._report = report
        self.count = self.calls = 0

    def write(self, job: JobDocument, series: Sequence[Series], checkpoints: Sequence[Checkpoint]) -> None:
        self.calls += 1
        self._report()

    def forget(self, job: str) -> None: ...

    def close(self) -> None: ...


async def test_a_pass_ends_although_the_job_reports_steps_all_the_time(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        node = await one_trainer(client)
        job = (await client.submit(**ONE))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        loop, size = asyncio.get_running_loop(), await node.progress(worker, step(1))

        def report() -> None:
            nonlocal size
            size = asyncio.run_coroutine_threadsafe(node.progress(worker, step(2), offset=size), loop).result(10)

        tracker, own = GrowingTracker(report), client.master
        place = TrackerPlace("scripted", "a place", lambda: tracker)
        target = TrackerTarget(place, database=own.database, streams=own.streams, clock=own.clock)
        for passes in (1, 2):
            assert await target.export(job) == Accepted(None, "metrics written to a place")
            assert tracker.calls == passes


async def test_a_server_that_fails_delays_no_job_and_its_credentials_are_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with caplog.at_level(logging.WARNING):
        async with on_master(tmp_path, mlflow_uri="http://me:secret@127.0.0.1:9") as client:
            job = (await client.submit())["id"]
            await client.user("POST", f"/jobs/{job}/cancel")
            await client.until(job, "cancelled")
            async with asyncio.timeout(20):
                while 'outcome="rejected",target="mlflow"' not in (await client.user("GET", "/metrics")).text:
                    await asyncio.sleep(0.05)
    (warned,) = [one.getMessage() for one in caplog.records if "can't be exported" in one.getMessage()]
    assert f"job {job} can't be exported (mlflow): the MLflow server http://***@127.0.0.1:9 failed" in warned
    assert "secret" not in caplog.text


def test_nodes_and_workers_do_not_get_the_credentials() -> None:
    given: dict[str, Any] = {
        "ROLECALL_MLFLOW_URI": "http://me:secret@mlflow",
        "MLFLOW_TRACKING_PASSWORD": "secret",
        "A": "b",
    }
    for passed in (for_nodes(given), for_workers(given)):
        assert given.keys() & passed.keys() == {"A"}
