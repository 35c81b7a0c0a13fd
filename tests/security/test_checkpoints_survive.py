# pyright: standard
"""No node's word deletes a checkpoint: the master looks for itself, and keeps what it cannot prove to be damaged."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.master.harness import ONE_TRAINER, Client, Node, failure, on_master, one_trainer

from rolecall.master import verification
from rolecall.spec.state import WorkerState
from rolecall.spec.wire import DesiredWorker

GONE = failure("DamagedCheckpoint: part 'part' of the checkpoint is gone: no such file", condemns_checkpoint=True)


def run_checkpointed(*steps: int) -> Any:
    """A job on one node with these checkpoints, whose first attempt has failed."""

    async def begin(client: Client, node: Node) -> str:
        job = (await client.submit(roles=ONE_TRAINER))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        for step in steps:
            assert (await client.checkpoint(job, 1, step)).status_code == 201
        await node.say(worker, WorkerState.FAILED, failure=failure())
        return job

    return begin


async def attempt(number: int, *nodes: Node) -> tuple[Node, DesiredWorker]:
    """The worker of this attempt, and the node that it is placed on."""
    async with asyncio.timeout(20):
        while True:
            for node in nodes:
                for worker in await node.beat(wait_s=0.1):
                    if worker.launch.attempt == number:
                        return node, worker


def step_of(worker: DesiredWorker) -> int | None:
    return worker.launch.resume_from.step if worker.launch.resume_from else None


async def steps(client: Client, job: str) -> list[int]:
    found = (await client.user("GET", f"/jobs/{job}/checkpoints")).json()["checkpoints"]
    return [one["manifest"]["step"] for one in found]


async def events(client: Client, job: str) -> list[str]:
    return [one["message"] for one in (await client.user("GET", f"/jobs/{job}/events")).json()["events"]]


@pytest.mark.slow
async def test_a_node_that_cannot_read_the_store_costs_no_checkpoint(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        bad = await one_trainer(client, "trainer-0")
        job = await run_checkpointed(10, 20)(client, bad)
        for number in (2, 3, 4):
            _, worker = await attempt(number, bad)
            assert step_of(worker) == 20
            await bad.say(worker, WorkerState.FAILED, failure=GONE)
        await client.until(job, "failed")
        assert await steps(client, job) == [20, 10]
        found = [text for text in await events(client, job) if "is intact" in text]
        assert found
        assert "trainer-0" in found[0]
        assert "mount" in found[0]
        assert "credentials" in found[0]
    assert {path.parent.name for path in tmp_path.rglob("part")} == {"step-10", "step-20"}


@pytest.mark.slow
async def test_the_next_attempt_avoids_the_node_that_could_not_read(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        bad = await one_trainer(client, "trainer-0")
        await run_checkpointed(10)(client, bad)
        _, worker = await attempt(2, bad)
        good = await one_trainer(client, "trainer-1", boot="m1", slots=1)
        await bad.say(worker, WorkerState.FAILED, failure=GONE)
        node, worker = await attempt(3, bad, good)
        assert node is good
        assert step_of(worker) == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda path: path.unlink(), "is gone"),
        (lambda path: path.write_bytes(b"weights"), "has 7 bytes instead of 13"),
        (lambda path: path.write_bytes(b"weights at 2x"), "has the SHA-256 114939235e5c90c7… instead of"),
    ],
    ids=["gone", "short", "changed"],
)
async def test_a_checkpoint_that_is_damaged_is_forgotten_with_a_reason(
    tmp_path: Path, harm: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "CONFIRM_AFTER", timedelta(seconds=0.2))
    monkeypatch.setattr(verification, "_LOOK_EVERY_S", 0.3)
    async with on_master(tmp_path) as client:
        node = await one_trainer(client)
        job = await run_checkpointed(10, 20)(client, node)
        _, worker = await attempt(2, node)
        harm(next((tmp_path / "blobs" / job / "1").glob("step-20/part")))
        await node.say(worker, WorkerState.FAILED, failure=GONE)
        _, worker = await attempt(3, node)
        assert step_of(worker) == 10
        assert await steps(client, job) == [10]
        (found,) = [text for text in await events(client, job) if "step 20 is deleted" in text]
        assert "part 'part'" in found
        assert why in found


@pytest.mark.slow
async def test_a_store_that_is_unavailable_to_the_master_too_proves_nothing(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        node = await one_trainer(client)
        job = await run_checkpointed(10, 20)(client, node)
        _, worker = await attempt(2, node)
        blobs = tmp_path / "blobs"
        blobs.rename(tmp_path / "unmounted")
        blobs.mkdir()
        await node.say(worker, WorkerState.FAILED, failure=GONE)
        async with asyncio.timeout(10):
            while not any("can't be verified" in text for text in await events(client, job)):
                await asyncio.sleep(0.05)
        assert await steps(client, job) == [20, 10]
        document = await client.job(job)
        assert document["state"] == "queued"
        assert "verifies the checkpoint at step 20" in document["waiting_for"]
