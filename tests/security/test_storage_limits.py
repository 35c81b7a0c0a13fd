"""No job fills the master's volume: a reserve of free space, and a limit for each job."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.master.harness import (
    NODE_TOKEN,
    ONE_TRAINER,
    Client,
    ManualClock,
    accepted,
    bearer,
    line,
    make_token,
    on_master,
    one_trainer,
    submit_as,
)
from tests.volumes import filled, mounted

from rolecall.spec.access import Scope
from rolecall.spec.errors import QuotaExceeded
from rolecall.spec.state import WorkerState


@pytest.mark.slow
async def test_below_the_reserve_reports_are_stored_and_logs_and_uploads_wait(tmp_path: Path) -> None:
    clock = ManualClock()
    with mounted(tmp_path / "data", "16m"):
        async with on_master(tmp_path / "data", clock=clock, reserve_bytes=4 << 20) as client:
            node = await one_trainer(client)
            job = (await client.submit(roles=ONE_TRAINER))["id"]
            (worker,) = await node.workers()
            await node.say(worker, WorkerState.RUNNING)
            log = f"/internal/jobs/{job}/attempts/1/ranks/0/streams/log?offset=0"
            upload = "/attempts/1/blobs/model"
            with filled(tmp_path / "data", but=3 << 20):
                clock.advance(2)  # A look at the volume is good for a second.
                for _ in range(2):
                    refused = await client.http.put(log, headers=bearer(NODE_TOKEN), content=b"hello\n")
                    assert refused.status_code == 507
                    assert "ROLECALL_RESERVE_BYTES" in refused.json()["detail"]
                assert (await client.worker("PUT", job, 1, upload, content=b"model")).status_code == 507
                assert await node.progress(worker, line("step", step=7, metrics={"loss": 1.0})) > 0
                assert (await client.submit())["state"] == "queued"
                assert (await client.job(job))["progress"]["step"] == 7
            clock.advance(2)
            sent = await client.http.put(log, headers=bearer(NODE_TOKEN), content=b"hello\n")
            assert sent.json()["size"] == 6
            assert (await client.worker("PUT", job, 1, upload, content=b"model")).status_code == 201


@pytest.mark.slow
async def test_below_half_of_the_reserve_users_can_only_free_space(tmp_path: Path) -> None:
    clock = ManualClock()
    with mounted(tmp_path / "data", "32m"):
        async with on_master(tmp_path / "data", clock=clock, reserve_bytes=16 << 20) as client:
            job, other = [(await client.submit())["id"] for _ in range(2)]
            assert (await client.user("POST", f"/jobs/{other}/pause")).status_code == 200
            node = await one_trainer(client)
            reported = (await client.submit(roles=ONE_TRAINER))["id"]
            (worker,) = await node.workers()
            with filled(tmp_path / "data", but=7 << 20):
                clock.advance(2)
                refused = [
                    await client.user("PATCH", f"/jobs/{job}", json={"priority": 1}),
                    await client.user("POST", "/jobs", json={"workload": "toy"}),
                    await client.user("POST", f"/jobs/{other}/resume"),
                ]
                assert (await client.user("POST", f"/jobs/{job}/cancel")).status_code == 200
                refused.append(await client.user("POST", f"/jobs/{job}/retry"))
                refused += [await record(client, kind, reported, "a", 1) for kind in ("artifacts", "checkpoints")]
                assert [answer.status_code for answer in refused] == [507] * 6
                assert "ROLECALL_RESERVE_BYTES" in refused[0].json()["detail"]
                assert (await client.user("DELETE", f"/jobs/{job}")).status_code == 204
                await node.say(worker, WorkerState.RUNNING)
                size = await node.progress(worker, line("step", step=7, metrics={"loss": 1.0}))
                assert (await client.job(reported))["progress"]["step"] == 7
                with filled(tmp_path / "data", but=3 << 20):  # less than a quarter
                    clock.advance(2)
                    refused = await client.http.put(
                        f"/internal/jobs/{reported}/attempts/1/ranks/0/streams/progress?offset={size}",
                        headers=bearer(NODE_TOKEN),
                        content=line("step", step=8).model_dump_json().encode() + b"\n",
                    )
                    assert refused.status_code == 507
                    await node.say(worker, WorkerState.SUCCEEDED, exit_code=0)
                    await client.until(reported, "succeeded")
                clock.advance(2)
                assert (await client.user("GET", f"/jobs/{reported}/metrics")).json()["series"]


async def test_a_job_may_not_store_more_than_its_limit(tmp_path: Path) -> None:
    async with on_master(tmp_path, max_job_bytes=100) as client:
        node = await one_trainer(client)
        job = (await client.submit(roles=ONE_TRAINER))["id"]
        await node.workers()
        for step in range(5):  # Of which two stay, so that older ones do not count.
            assert (await client.checkpoint(job, 1, step)).status_code == 201
        assert (await client.worker("PUT", job, 1, "/attempts/1/blobs/a", content=bytes(60))).status_code == 201
        assert (await client.worker("PUT", job, 1, "/attempts/1/blobs/a", content=bytes(60))).status_code == 201
        refused = await client.worker("PUT", job, 1, "/attempts/1/blobs/b", content=bytes(60))
        assert refused.status_code == 413
        assert "ROLECALL_MAX_JOB_BYTES" in refused.json()["detail"]
        assert (await client.worker("PUT", job, 1, "/attempts/1/blobs/b", content=bytes(10))).status_code == 201
    assert not list(tmp_path.rglob(".upload-*"))


@pytest.mark.parametrize("kind", ["artifacts", "checkpoints"])
async def test_below_a_blob_url_the_limit_holds_when_something_is_recorded(tmp_path: Path, kind: str) -> None:
    async with on_master(tmp_path, max_job_bytes=100, blob_url=(tmp_path / "store").as_uri()) as client:
        node = await one_trainer(client)
        job = (await client.submit(roles=ONE_TRAINER))["id"]
        await node.workers()
        (tmp_path / "store" / job / "1").mkdir(parents=True)
        for name in ("a", "b"):
            (tmp_path / "store" / job / "1" / name).write_bytes(bytes(60))
        answers = [await record(client, kind, job, name, 60) for name in ("a", "b")]
        assert [answer.status_code for answer in answers] == [201, 413]


async def test_a_job_has_a_limited_number_of_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolecall.master.store.artifacts.MAX_ARTIFACTS", 2)
    async with on_master(tmp_path) as client:
        node = await one_trainer(client)
        job = (await client.submit(roles=ONE_TRAINER))["id"]
        await node.workers()
        for name in "abc":
            (await client.worker("PUT", job, 1, f"/attempts/1/blobs/{name}", content=b"x")).raise_for_status()
        answers = [await record(client, "artifacts", job, name, 1) for name in "abca"]
        assert [answer.status_code for answer in answers] == [201, 201, 413, 201]
        assert "put more into each" in answers[2].json()["detail"]


async def test_names_of_parts_are_short(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        await one_trainer(client)
        job = (await client.submit(roles=ONE_TRAINER))["id"]
        part = {"name": "a" * 256, "blob": "1/a", "size": 1, "sha256": "0" * 64}
        for change in ({}, {"name": "a", "sha256": "0" * 65}):
            manifest: dict[str, Any] = {"attempt": 1, "step": 1, "parts": [part | change], "position": {}}
            refused = await client.worker("POST", job, 1, "/attempts/1/checkpoints", json=manifest)
            assert refused.status_code == 422
            assert "at most 255 characters" in refused.json()["detail"]


async def record(client: Client, kind: str, job: str, name: str, size: int) -> httpx.Response:
    """Record a blob as an artifact, or as the only part of a checkpoint of its own."""
    notice = {"name": name, "blob": f"1/{name}", "size": size, "sha256": "0" * 64}
    manifest: dict[str, Any] = {"attempt": 1, "step": ord(name), "parts": [notice], "position": {}}
    body = notice if kind == "artifacts" else manifest
    return await client.worker("POST", job, 1, f"/attempts/1/{kind}", json=body)


@pytest.mark.parametrize("kind", ["artifacts", "checkpoints"])
async def test_below_a_blob_url_the_limit_of_a_token_holds_when_something_is_recorded(
    tmp_path: Path, kind: str
) -> None:
    async with on_master(tmp_path, blob_url=(tmp_path / "store").as_uri()) as client:
        node = await one_trainer(client)
        alice = await make_token(client, "alice", Scope.SUBMIT, max_stored_bytes=10_000)
        job = accepted(await submit_as(client, alice))["id"]
        await node.workers()
        (tmp_path / "store" / job / "1").mkdir(parents=True)
        answers: list[httpx.Response] = []
        for name in ("a", "b"):
            (tmp_path / "store" / job / "1" / name).write_bytes(bytes(15_000))
            answers.append(await record(client, kind, job, name, 15_000))
        assert [answer.status_code for answer in answers] == [201, 413]
        assert "more than 2 times its max_stored_bytes" in answers[1].json()["detail"]


def test_a_job_over_its_limit_is_not_tried_again() -> None:
    assert not QuotaExceeded.retryable
