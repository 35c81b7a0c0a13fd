"""Jobs belong to tokens: who sees and steers them, and what the jobs of one token may take."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import SecretStr
from tests.running import accepted

from rolecall.spec.access import Scope
from rolecall.spec.role import Role
from rolecall.spec.state import WorkerState

from .harness import ONE_TRAINER, Client, Node, files, make_node, make_token, on_master, one_trainer, submit_as
from .test_api import check_problem


async def test_jobs_of_others_are_hidden_from_who_may_only_submit(client: Client) -> None:
    alice, bob = [await make_token(client, name, Scope.SUBMIT) for name in ("alice", "bob")]
    both, reader = (
        await make_token(client, "both", Scope.SUBMIT, Scope.READ),
        await make_token(client, "eve", Scope.READ),
    )
    job = accepted(await submit_as(client, alice))
    assert job["owner"] == "alice"
    for path, method in (("", "GET"), ("/events", "GET"), ("/logs", "GET"), ("/cancel", "POST")):
        hidden, unknown = [await client.call(bob, method, f"/jobs/{one}{path}") for one in (job["id"], "toy-none")]
        assert hidden.status_code == unknown.status_code == 404
        same = hidden.text.replace(job["id"], "toy-none")
        assert same == unknown.text
    listed = {token: (await client.call(token, "GET", "/jobs")).json()["jobs"] for token in (alice, bob, reader)}
    assert [len(jobs) for jobs in listed.values()] == [1, 0, 1]
    for token, owner, count in ((bob, "alice", 0), (reader, "alice", 1), (reader, "bob", 0), (alice, "alice", 1)):
        found = (await client.call(token, "GET", "/jobs", params={"owner": owner})).json()["jobs"]
        assert len(found) == count
    seen = await client.call(both, "POST", f"/jobs/{job['id']}/cancel")
    assert seen.status_code == 403
    assert "belongs to alice" in seen.json()["detail"]
    assert (await client.call(alice, "POST", f"/jobs/{job['id']}/pause")).status_code == 200
    assert (await client.call(alice, "POST", f"/jobs/{job['id']}/resume")).status_code == 200
    assert (await client.user("POST", f"/jobs/{job['id']}/cancel")).json()["reason"] == "cancelled by admin"
    assert (await client.call(alice, "POST", f"/jobs/{job['id']}/retry")).status_code == 200
    events = (await client.call(alice, "GET", f"/jobs/{job['id']}/events")).json()["events"]
    said = [event["message"] for event in events]
    assert said == [
        "submitted by alice",
        "paused by alice",
        "resumed by alice",
        "cancelled by admin",
        "retried by alice",
    ]


async def test_idempotency_keys_belong_to_their_owner(client: Client) -> None:
    alice, bob = [await make_token(client, name, Scope.SUBMIT) for name in ("alice", "bob")]
    key = {"Idempotency-Key": "mine"}
    body = {"workload": "toy", "roles": ONE_TRAINER}
    first, again, others = [
        accepted(await client.call(token, "POST", "/jobs", json=body, headers=key)) for token in (alice, alice, bob)
    ]
    assert first["id"] == again["id"] != others["id"]
    assert others["owner"] == "bob"
    other = await client.call(bob, "POST", "/jobs", json=body | {"name": "x"}, headers=key)
    assert other.status_code == 422
    assert first["id"] not in other.text
    await client.user("PATCH", "/tokens/alice", json={"max_slots": 0})
    assert accepted(await client.call(alice, "POST", "/jobs", json=body, headers=key))["id"] == first["id"]
    assert (await client.call(alice, "POST", "/jobs", json=body)).status_code == 422


async def test_a_token_may_queue_a_limited_number_of_jobs(client: Client) -> None:
    alice = await make_token(client, "alice", Scope.SUBMIT, max_queued=2)
    first, second = [accepted(await submit_as(client, alice))["id"] for _ in range(2)]
    await client.call(alice, "POST", f"/jobs/{first}/pause")
    refused = await submit_as(client, alice)
    assert refused.status_code == 429, refused.text
    assert refused.headers["content-type"] == "application/problem+json"
    assert int(refused.headers["Retry-After"]) > 0
    assert "max_queued is 2" in refused.json()["detail"]
    await client.call(alice, "POST", f"/jobs/{second}/cancel")
    accepted(await submit_as(client, alice))
    retried = await client.call(alice, "POST", f"/jobs/{second}/retry")
    assert retried.status_code == 429
    assert (await client.user("PATCH", "/tokens/alice", json={"max_queued": None})).json()["max_queued"] is None
    assert (await client.call(alice, "POST", f"/jobs/{second}/retry")).status_code == 200


@pytest.mark.slow
async def test_a_dry_run_checks_the_limits_without_writing(tmp_path: Path, database_url: str) -> None:
    async with on_master(tmp_path, database_url=SecretStr(database_url)) as client:
        alice = await make_token(client, "alice", Scope.SUBMIT, max_queued=1, max_stored_bytes=1 << 20)
        body = {"workload": "toy", "roles": ONE_TRAINER}
        for expected in (200, 429):
            answer = await client.call(alice, "POST", "/jobs?dry_run=true", json=body)
            assert answer.status_code == expected, answer.text
            await submit_as(client, alice)


async def test_a_token_gives_priorities_up_to_its_limit(client: Client) -> None:
    alice = await make_token(client, "alice", Scope.SUBMIT, max_priority=5)
    for query in ("", "?dry_run=true"):
        body = {"workload": "toy", "roles": ONE_TRAINER, "priority": 6}
        refused = await client.call(alice, "POST", f"/jobs{query}", json=body)
        assert refused.status_code == 422, refused.text
        (problem,) = refused.json()["errors"]
        assert (problem["field"], problem["given"], problem["legal"]) == ("priority", "6", "-100 to 5")
    job = accepted(await submit_as(client, alice, priority=5))["id"]
    assert (await client.call(alice, "PATCH", f"/jobs/{job}", json={"priority": 100})).status_code == 422
    assert (await client.call(alice, "PATCH", f"/jobs/{job}", json={"priority": -100})).status_code == 200
    assert (await client.user("PATCH", f"/jobs/{job}", json={"priority": 100})).status_code == 200
    # Null resets it to 0.
    await client.user("PATCH", "/tokens/alice", json={"max_priority": -5})
    assert (await client.call(alice, "PATCH", f"/jobs/{job}", json={"priority": None})).status_code == 422
    assert (await client.call(alice, "PATCH", f"/jobs/{job}", json={"name": "other"})).status_code == 200


async def test_a_token_may_run_a_limited_number_of_workers(client: Client) -> None:
    alice, bob = (
        await make_token(client, "alice", Scope.SUBMIT, max_slots=2),
        await make_token(client, "bob", Scope.SUBMIT),
    )
    node = Node(client, make_node("trainer-0", Role.TRAINER, 4))
    await node.register()
    await node.beat()
    first = accepted(await submit_as(client, alice, roles={"parameter-server": 0, "trainer": 2}))["id"]
    waits = accepted(await submit_as(client, alice))["id"]
    other = accepted(await submit_as(client, bob))["id"]
    await client.until(first, "placed")
    await client.until(other, "placed")
    waiting = await client.until(waits, "queued", also=lambda job: job["waiting_for"])
    assert "token alice uses 2 of its 2 slots" in waiting["waiting_for"]
    large = await submit_as(client, alice, roles={"parameter-server": 0, "trainer": 3})
    assert large.status_code == 422
    assert "max_slots" in large.json()["errors"][0]["message"]
    await client.user("PATCH", "/tokens/alice", json={"max_slots": 3})
    await client.until(waits, "placed")


def requested_bytes(data: Path) -> int:
    """The size of all jobs' requests."""
    with closing(sqlite3.connect(data / "rolecall.db")) as database:
        return database.execute("SELECT sum(bytes) FROM jobs").fetchone()[0]


@pytest.mark.slow
async def test_who_submits_and_cancels_fills_their_own_storage(client: Client) -> None:
    text = "x" * 100
    alice, bob = [await make_token(client, name, Scope.SUBMIT, max_queued=1, max_stored_bytes=2000) for name in "ab"]
    ids: list[str] = []
    while (submitted := await submit_as(client, alice, name=text)).status_code != 429:
        ids.append(accepted(submitted)["id"])
        assert (await client.call(alice, "POST", f"/jobs/{ids[-1]}/cancel")).is_success
        assert len(ids) < 20
    problem = check_problem(submitted, 429)
    assert "the requests, checkpoints and artifacts of token a take" in problem["detail"]
    assert accepted(await submit_as(client, bob))
    # Deleting jobs frees the space.
    assert (await client.call(alice, "DELETE", f"/jobs/{ids[0]}")).is_success
    async with asyncio.timeout(10):
        while (await submit_as(client, alice, name=text)).status_code == 429:
            await asyncio.sleep(0.01)


async def test_a_token_may_store_a_limited_number_of_bytes(client: Client, tmp_path: Path) -> None:
    alice = await make_token(client, "alice", Scope.SUBMIT)
    node = await one_trainer(client)
    cancelled = accepted(await submit_as(client, alice, roles={"trainer": 99}))["id"]
    assert (await client.call(alice, "POST", f"/jobs/{cancelled}/cancel")).is_success
    job = accepted(await submit_as(client, alice))["id"]
    size = requested_bytes(tmp_path) + len(b"weights at 1")
    await client.user("PATCH", "/tokens/alice", json={"max_stored_bytes": size})
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    assert (await client.checkpoint(job, 1, 1)).status_code == 201
    # A user's call has no body that could be smaller: all limits of tokens answer it alike.
    for refused in (
        await submit_as(client, alice),
        await client.call(alice, "POST", "/jobs?dry_run=true", json={"workload": "toy", "roles": ONE_TRAINER}),
        await client.call(alice, "POST", f"/jobs/{cancelled}/retry"),
    ):
        problem = check_problem(refused, 429)
        assert problem["type"] == "urn:rolecall:problem:limit-reached"
        assert f"max_stored_bytes is {size}" in problem["detail"]
    # The attempt goes on writing, because a checkpoint is whole before an older one goes.
    assert (await client.checkpoint(job, 1, 2)).status_code == 201
    await client.worker("PUT", job, 1, "/attempts/1/blobs/more", content=bytes(2 * size))
    late = await client.worker("PUT", job, 1, "/attempts/1/blobs/late", content=b"x")
    # A worker does not try 413 again, unlike 429: its attempt would wait for space that nobody frees.
    problem = check_problem(late, 413)
    assert problem["type"] == "urn:rolecall:problem:storage-limit-reached"
    assert "max_stored_bytes" in problem["detail"]
    assert files(tmp_path, "**/*late*") == []
    async with asyncio.timeout(20):
        # A thread of the store deletes the rest of the upload, and no answer waits for it.
        while files(tmp_path, "**/.upload-*"):
            await asyncio.sleep(0.02)
    assert (await client.job(job))["state"] == "running"
