"""Deletion and retention in a master, and that a master that is killed in between finishes it."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Table, func, select
from tests.master.harness import ONE_TRAINER, Client, Node, failure, one_trainer

from rolecall.master.blobs import Blobs
from rolecall.master.retention import superfluous
from rolecall.master.store import schema
from rolecall.master.store.database import Database
from rolecall.master.store.records import CheckpointRecord
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.spec.state import StopMode, WorkerState

from .harness import on_master
from .test_api import check_problem

START = datetime(2030, 1, 1, tzinfo=UTC)
ONE_MARK = 16
"""Bytes of the time at which a log arrived."""


async def finished(client: Client, node: Node) -> str:
    """A job that has left a log, a checkpoint and an artifact."""
    job = (await client.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    await node.ship(worker, "log", b"hello\n")
    assert (await client.checkpoint(job, 1, 5)).status_code == 201
    stored = (await client.worker("PUT", job, 1, "/attempts/1/blobs/model", content=b"model")).json()
    await client.worker("POST", job, 1, "/attempts/1/artifacts", json={"name": "model", **stored})
    await node.say(worker, WorkerState.SUCCEEDED)
    await client.until(job, "succeeded")
    return job


async def gone(client: Client, data: Path, job: str) -> None:
    """Wait until nothing of the job is left."""
    assert (await client.user("GET", f"/jobs/{job}")).status_code == 404
    database = client.master.database
    async with asyncio.timeout(10):
        while (data / "streams" / job).exists() or (data / "blobs" / job).exists() or any(await rows(database)):
            await asyncio.sleep(0.02)


async def rows(database: Database) -> list[int]:
    """The number of rows in each table of jobs, and of what they have."""
    tables = [table for table in schema.metadata.sorted_tables if _is_of_jobs(table)]
    async with database.read() as connection:
        return [await connection.scalar(select(func.count()).select_from(table)) or 0 for table in tables]


def _is_of_jobs(table: Table) -> bool:
    return table is schema.jobs or any(_is_of_jobs(key.column.table) for key in table.foreign_keys)


@pytest.mark.slow
async def test_a_deleted_job_leaves_nothing(client: Client, tmp_path: Path) -> None:
    job = await finished(client, await one_trainer(client))
    assert (tmp_path / "streams" / job).exists()
    assert (await client.user("DELETE", f"/jobs/{job}")).status_code == 204
    assert (await client.user("GET", "/jobs")).json()["jobs"] == []
    await gone(client, tmp_path, job)
    assert (await client.user("DELETE", f"/jobs/{job}")).status_code == 404


@pytest.mark.slow
async def test_a_job_that_runs_is_deleted_by_force_alone(client: Client, tmp_path: Path) -> None:
    node = await one_trainer(client)
    job = (await client.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    await client.until(job, "running")
    refused = await client.user("DELETE", f"/jobs/{job}")
    assert refused.status_code == 409
    assert "?force=true" in refused.json()["detail"]
    for _ in range(2):
        assert (await client.user("DELETE", f"/jobs/{job}?force=true")).status_code == 204
    assert (await client.job(job))["state"] in {"running", "stopping"}
    (worker,) = await node.workers(1, StopMode.CANCEL)
    await node.say(worker, WorkerState.STOPPED)
    async with asyncio.timeout(10):
        while (await client.user("GET", f"/jobs/{job}")).status_code == 200:
            await asyncio.sleep(0.02)
    await gone(client, tmp_path, job)
    waiting = (await client.submit(roles={"trainer": 99}))["id"]
    assert (await client.user("DELETE", f"/jobs/{waiting}?force=true")).status_code == 204
    await gone(client, tmp_path, waiting)


@pytest.mark.slow
async def test_an_unavailable_blob_store_delays_deletion_and_a_restart_finishes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any) -> None:
        raise OSError("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(Blobs, "remove_job", away)
        async with on_master(tmp_path) as client:
            job = await finished(client, await one_trainer(client))
            assert (await client.user("DELETE", f"/jobs/{job}")).status_code == 204
            assert (await client.user("DELETE", f"/jobs/{job}")).status_code == 204
            assert (await client.user("GET", f"/jobs/{job}")).status_code == 404
    assert (tmp_path / "blobs" / job).exists()
    async with on_master(tmp_path) as client:
        assert (tmp_path / "blobs" / job).exists() or not (tmp_path / "streams" / job).exists()
        await gone(client, tmp_path, job)


@pytest.mark.slow
async def test_left_overs_are_swept_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: Any) -> int:
        raise OSError("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(Blobs, "sweep", away)
        async with on_master(tmp_path) as client:
            node = await one_trainer(client)
            job = (await client.submit(roles=ONE_TRAINER, max_restarts=0))["id"]
            (worker,) = await node.workers()
            await node.say(worker, WorkerState.RUNNING)
            await client.worker("PUT", job, 1, "/attempts/1/blobs/never-closed", content=b"a part")
            await node.say(worker, WorkerState.FAILED, failure=failure())
            await client.until(job, "failed")
    (cut_off,) = [path.parent / ".upload-of-a-killed-master" for path in (tmp_path / "blobs").rglob("never-closed")]
    cut_off.write_bytes(b"half")
    async with on_master(tmp_path):
        async with asyncio.timeout(10):
            while [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]:
                await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_prune_lists_and_deletes_what_ended_before(client: Client) -> None:
    node = await one_trainer(client)
    job = await finished(client, node)
    waiting = (await client.submit(roles={"trainer": 99}))["id"]
    body = {"ended_before": datetime.now(UTC).isoformat(), "dry_run": True}
    (shown,) = (await client.user("POST", "/jobs/prune", json=body)).json()["jobs"]
    assert (shown["id"], shown["state"]) == (job, "succeeded")
    assert shown["size"] == len(b"hello\n") + len(b"weights at 5") + len(b"model") + ONE_MARK
    nothing = await client.user("POST", "/jobs/prune", json=body | {"state": "failed"})
    assert nothing.json() == {"jobs": [], "size": 0}
    not_ended = await client.user("POST", "/jobs/prune", json=body | {"state": "running"})
    (error,) = check_problem(not_ended, 422)["errors"]
    assert (error["field"], error["legal"]) == ("state", "succeeded, failed, cancelled or null")
    assert (await client.job(job))["state"] == "succeeded"
    assert (await client.user("POST", "/jobs/prune", json=body | {"dry_run": False})).json()["size"] > 0
    assert (await client.user("GET", f"/jobs/{job}")).status_code == 404
    assert (await client.job(waiting))["state"] == "queued"


def manifest(step: int, *, keep: bool = False) -> CheckpointManifest:
    part = CheckpointPart(name="part", blob=f"1/{step}", size=1, sha256="0" * 64)
    return CheckpointManifest(attempt=1, step=step, parts=(part,), position={}, keep=keep)


def records(*steps: int, kept: int = 0, doubted: int = 0) -> list[CheckpointRecord]:
    return [
        CheckpointRecord(
            manifest=manifest(step, keep=step == kept),
            created_at=START,
            verify_at=START if step == doubted else None,
        )
        for step in steps
    ]


def test_what_is_superfluous() -> None:
    def found(*given: Any, **values: Any) -> list[int]:
        return [one.step for one in superfluous(*given, **values)]

    assert found(records(5, 4, 3, 2, 1), 2) == [3, 2, 1]
    assert found(records(5, 4, 3, 2, 1, kept=2), 2) == [3, 1]
    assert found(records(5, 4, 3), 2, in_use=manifest(3)) == []
    assert found(records(5, 4, 3, doubted=5), 1) == [3], "the doubted one may turn out to be damaged"
    assert found(records(5), 1) == []
