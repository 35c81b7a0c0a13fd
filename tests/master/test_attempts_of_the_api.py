"""The routes of attempts: what nodes ship for them, and what their workers store, as long as the attempt is current.

tests/security tests the limits of all this.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.master.harness import ONE_TRAINER, Client, Node, line, make_settings, on_master, one_trainer, serving
from tests.master.test_api import check_problem
from tests.master.test_blobs import BODY, running_job

from rolecall.spec.state import WorkerState
from rolecall.spec.wire import DesiredWorker


async def running(client: Client) -> tuple[Node, str, DesiredWorker]:
    """A job of one worker that runs."""
    node = await one_trainer(client)
    job = (await client.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    await client.until(job, "running")
    return node, job, worker


JSON = {"Content-Type": "application/json"}


def part(blob: str, size: int) -> dict[str, Any]:
    return {"name": "part", "blob": blob, "size": size, "sha256": "0" * 64}


async def record(client: Client, job: str, step: int, *parts: dict[str, Any], attempt: int = 1) -> httpx.Response:
    """Record a checkpoint by the first attempt."""
    manifest: dict[str, Any] = {"attempt": attempt, "step": step, "parts": parts, "position": {}}
    return await client.worker("POST", job, 1, "/attempts/1/checkpoints", json=manifest)


async def test_what_an_ended_attempt_reports_late_is_stored_and_changes_nothing(client: Client) -> None:
    node, job, worker = await running(client)
    size = await node.progress(worker, line("result", metrics={"auc": 0.5}))
    await node.say(worker, WorkerState.SUCCEEDED)
    ended = await client.until(job, "succeeded")
    assert ended["result"] == {"auc": 0.5}
    late = line("result", metrics={"auc": 0.75})
    assert await node.progress(worker, late, offset=size) > size
    assert (await client.job(job))["result"] == ended["result"]
    assert await node.ship(worker, "log", b"late\n") == len(b"late\n")
    assert "late" in (await client.user("GET", f"/jobs/{job}/logs")).text


async def test_a_stream_of_an_attempt_that_was_never_placed_is_refused(client: Client) -> None:
    _, job, _ = await running(client)
    answer = await client.internal("PUT", f"/jobs/{job}/attempts/2/ranks/0/streams/log?offset=0", content=b"x")
    assert check_problem(answer, 409)["detail"] == f"job {job} has no attempt 2; its newest is 1"


async def test_only_a_log_can_have_a_gap(client: Client) -> None:
    """Lost lines of progress would be lost events and results."""
    _, job, _ = await running(client)
    for kind, size in (("progress", 0), ("log", 1001)):
        path = f"/jobs/{job}/attempts/1/ranks/0/streams/{kind}"
        answer = await client.internal("PUT", path, params={"offset": 1000, "cut": True}, content=b"x")
        assert (answer.status_code, answer.json()) == (200, {"size": size})


async def test_workers_of_an_ended_attempt_store_and_read_nothing(client: Client) -> None:
    node, job, worker = await running(client)
    assert (await client.checkpoint(job, 1, 7)).status_code == 201
    await node.say(worker, WorkerState.SUCCEEDED)
    await client.until(job, "succeeded")
    blob = part("1/step-7/part", len(b"weights at 7"))
    for answer in (
        await client.worker("GET", job, 1, "/blobs/1/step-7/part"),
        await client.worker("PUT", job, 1, "/attempts/1/blobs/more", content=b"x"),
        await record(client, job, 8, blob),
        await client.worker("POST", job, 1, "/attempts/1/artifacts", json=blob),
    ):
        assert check_problem(answer, 409)["detail"].startswith(f"attempt 1 of job {job} is over")
    assert (await client.user("GET", f"/jobs/{job}/artifacts")).json()["artifacts"] == []
    found = (await client.user("GET", f"/jobs/{job}/checkpoints")).json()["checkpoints"]
    assert [one["manifest"]["step"] for one in found] == [7]


async def test_a_checkpoint_is_recorded_only_with_all_its_parts_and_by_its_own_attempt(client: Client) -> None:
    _, job, _ = await running(client)
    await client.worker("PUT", job, 1, "/attempts/1/blobs/part", content=b"abc")
    other = await record(client, job, 1, part("1/part", 3), attempt=2)
    assert check_problem(other, 409)["detail"] == "the manifest is of attempt 2, the call of attempt 1"
    half = await record(client, job, 1, part("1/part", 3), part("1/missing", 3) | {"name": "second"})
    detail = "blob 1/missing should have 3 bytes, but there is no such blob; upload it first"
    assert check_problem(half, 409)["detail"] == detail
    short = await record(client, job, 1, part("1/part", 4))
    assert check_problem(short, 409)["detail"] == "blob 1/part should have 4 bytes, but it has 3; upload it first"
    assert (await client.user("GET", f"/jobs/{job}/checkpoints")).json()["checkpoints"] == []
    assert (await record(client, job, 1, part("1/part", 3))).json() == {"recorded": True}


async def test_below_a_blob_url_the_limit_counts_each_blob_once_and_none_that_is_about_to_go(tmp_path: Path) -> None:
    """Checkpoints and artifacts together. The newest two checkpoints stay."""
    store = tmp_path / "store"
    async with on_master(tmp_path, max_job_bytes=100, blob_url=store.as_uri()) as client:
        _, job, _ = await running(client)
        (store / job / "1").mkdir(parents=True)
        for name, size in (("a", 60), ("b", 60), ("c", 60), ("d", 20), ("e", 20), ("f", 30)):
            (store / job / "1" / name).write_bytes(bytes(size))
        assert (await record(client, job, 1, part("1/a", 60))).status_code == 201
        shared = await client.worker("POST", job, 1, "/attempts/1/artifacts", json=part("1/a", 60))
        assert shared.status_code == 201, "the same blob"
        check_problem(await client.worker("POST", job, 1, "/attempts/1/artifacts", json=part("1/b", 60)), 413)
        check_problem(await record(client, job, 2, part("1/b", 60)), 413)
        replaced = await client.worker("POST", job, 1, "/attempts/1/artifacts", json=part("1/d", 20))
        assert replaced.status_code == 201, "an artifact of the same name"
        check_problem(await record(client, job, 2, part("1/f", 30)), 413)
        for step in (2, 3):
            assert (await record(client, job, step, part("1/e", 20))).status_code == 201
        assert (await record(client, job, 4, part("1/c", 60))).status_code == 201, "the first checkpoint goes"
        upload = await client.worker("PUT", job, 1, "/attempts/1/blobs/x", content=b"abc")
        assert "below ROLECALL_BLOB_URL" in check_problem(upload, 409)["detail"]
        assert not list(tmp_path.rglob("x")), "it would be in no sweep"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"position": json.loads('{"x": ' + "[" * 32 + "]" * 32 + "}")}, "at most 32 levels"),
        ({"position": json.loads('{"x": ' + "[" * 900 + "]" * 900 + "}")}, "at most 32 levels"),
        ({"position": {"x": "\ud800"}}, "half of a surrogate pair"),
    ],
)
async def test_a_manifest_that_nodes_could_not_read_is_refused(client: Client, given: dict[str, Any], why: str) -> None:
    """It would be in the answers to the nodes of the next attempts."""
    _, job, _ = await running(client)
    path, body = "/attempts/1/checkpoints", dict[str, Any](attempt=1, step=1, parts=[], position={})
    content = json.dumps({**body, **given}).encode()
    answer = await client.worker("POST", job, 1, path, content=content, headers=JSON)
    assert why in json.dumps(check_problem(answer, 422))
    deepest = {**body, "position": {"x": json.loads("[" * 31 + "]" * 31)}}
    assert (await client.worker("POST", job, 1, path, json=deepest)).status_code == 201


async def test_blobs_are_checked_and_served(client: Client, tmp_path: Path) -> None:
    node = await one_trainer(client)
    job = (await client.submit(roles=ONE_TRAINER))["id"]
    await node.workers()
    wrong = {"X-Content-SHA256": "0" * 64}
    path = "/attempts/1/blobs/model.bin"
    check_problem(await client.worker("PUT", job, 1, path, content=b"abc", headers=wrong), 400)
    check_problem(await client.worker("PUT", job, 1, "/attempts/1/blobs/%2e%2e/x", content=b"abc"), 400)
    check_problem(await client.worker("PUT", job, 2, "/attempts/2/blobs/x", content=b"abc"), 409)
    stored = (await client.worker("PUT", job, 1, path, content=b"abc")).json()
    assert (stored["blob"], stored["size"]) == ("1/model.bin", 3)
    assert (await client.worker("GET", job, 1, "/blobs/1/model.bin")).content == b"abc"
    check_problem(await client.worker("GET", job, 1, "/blobs/1/none"), 404)
    check_problem(await client.worker("GET", job, 2, "/blobs/1/model.bin"), 409)
    for taken in (f"{path}/more", "/attempts/1/blobs/folder"):
        await client.worker("PUT", job, 1, "/attempts/1/blobs/folder/x", content=b"abc")
        refused = check_problem(await client.worker("PUT", job, 1, taken, content=b"abc"), 400)
        assert "choose another name" in refused["detail"]
    notice = {"name": "model.bin", **stored}
    assert (await client.worker("POST", job, 1, "/attempts/1/artifacts", json=notice)).status_code == 201
    check_problem(await client.worker("POST", job, 1, "/attempts/1/artifacts", json=notice | {"size": 4}), 409)
    got = await client.user("GET", f"/jobs/{job}/artifacts/model.bin")
    assert (got.content, got.headers["x-content-sha256"]) == (b"abc", stored["sha256"])
    assert "model.bin" in check_problem(await client.user("GET", f"/jobs/{job}/artifacts/x"), 404)["detail"]
    assert not list(tmp_path.rglob(".upload-*"))


@pytest.mark.slow
async def test_an_upload_of_an_attempt_that_ended_is_stale(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path)) as client:
        node, job = await running_job(client)
        half, rest = asyncio.Event(), asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield BODY
            half.set()
            await rest.wait()
            yield b"the end"

        upload = asyncio.create_task(
            client.worker("PUT", job, 1, "/attempts/1/blobs/step-1/part", content=body(), timeout=30)
        )
        await half.wait()
        folder = tmp_path / "blobs" / job
        async with asyncio.timeout(20):
            while not [path for path in folder.rglob("*") if path.is_file()]:
                await asyncio.sleep(0.02)
        (worker,) = await node.beat()
        await node.say(worker, WorkerState.SUCCEEDED, exit_code=0)
        await client.until(job, "succeeded")
        async with asyncio.timeout(20):
            while [path for path in folder.rglob("*") if path.is_file()]:
                await asyncio.sleep(0.02)
        rest.set()
        refused = await upload
        assert refused.status_code == 409, refused.text
        assert f"attempt 1 of job {job} is over" in refused.json()["detail"]
        assert not [path for path in folder.rglob("*") if path.is_file()]
