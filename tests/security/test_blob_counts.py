"""The number of blobs that a worker may record and store, in addition to its bytes."""

from pathlib import Path
from typing import Any

import pytest
from tests.master.harness import ONE_TRAINER, Client, on_master, one_trainer

from rolecall.master import blobs
from rolecall.spec.state import WorkerState

PART = {"name": "part", "blob": "1/part", "size": 1, "sha256": "0" * 64}


async def running(client: Client) -> str:
    """A job of one worker that runs."""
    node = await one_trainer(client)
    job = (await client.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    return job


@pytest.mark.slow
async def test_a_job_has_a_limited_number_of_blobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "MAX_FILES", 3)

    async with on_master(tmp_path) as client:
        job = await running(client)

        async def put(name: str) -> int:
            return (await client.worker("PUT", job, 1, f"/attempts/1/blobs/{name}", content=b"")).status_code

        assert [await put(name) for name in ("a", "a", "a", "b", "c/d", "e")] == [201] * 5 + [413]
        await client.master.blobs.delete(job, "1/b")
        assert await put("e") == 201


async def test_what_is_recorded_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with on_master(tmp_path) as client:
        job = await running(client)

        async def record(kind: str, body: dict[str, Any]) -> int:
            return (await client.worker("POST", job, 1, f"/attempts/1/{kind}", json=body)).status_code

        manifest: dict[str, Any] = {"attempt": 1, "step": 1, "parts": [PART], "position": {}}
        assert await record("checkpoints", manifest) == 409, "there is no such blob"
        assert await record("checkpoints", manifest | {"position": {"seeds": "x" * 70_000}}) == 422
        assert await record("checkpoints", manifest | {"parts": [{}] * 10_001}) == 422
        assert await record("checkpoints", manifest | {"parts": ["x" * (4 << 20)]}) == 413
        assert await record("checkpoints", manifest | {"parts": [PART, PART]}) == 422, "each has its own name"
        few = [PART | {"name": f"part-{number}"} for number in range(17)]
        refused = await client.worker("POST", job, 1, "/attempts/1/checkpoints", json=manifest | {"parts": few})
        assert refused.status_code == 422, "a conflict would tell the worker that its attempt is over"
        assert "at most 16" in refused.json()["errors"][0]["legal"]
        monkeypatch.setattr("rolecall.master.api.attempts.PARTS_PER_WORKER", 20_000)
        names = [f"trainer-{number:04}" for number in range(10_000)]
        parts = [PART | {"name": name, "blob": f"12/step-{1:012}-{name}.safetensors"} for name in names]
        assert await record("checkpoints", manifest | {"parts": parts}) == 409, "a gang of 10,000 workers"
        assert await record("checkpoints", manifest | {"parts": [*parts, PART]}) == 422
        notice: dict[str, Any] = {"name": "model", "blob": "1/part", "size": 1}
        assert await record("artifacts", notice | {"sha256": "0" * 64}) == 409
        for digest in ("0" * 63, "x" * 64, "A" * 64, "\r\n" + "0" * 62, "0" * 64 + "\n"):
            assert await record("artifacts", notice | {"sha256": digest}) == 422
