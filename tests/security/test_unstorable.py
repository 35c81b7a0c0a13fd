"""A worker's text that a database refuses must not keep a job from ending."""

from pathlib import Path

from sqlalchemy import text
from tests.master.harness import ONE_TRAINER, line, on_master, one_trainer

from rolecall.spec.state import WorkerState


async def test_a_line_that_cant_be_stored_is_skipped(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        refuse = "BEFORE INSERT ON events WHEN NEW.message = 'bad' BEGIN SELECT RAISE(ABORT, 'bad'); END"
        async with client.master.database.write() as connection:
            await connection.execute(text(f"CREATE TRIGGER refusing {refuse}"))
        node = await one_trainer(client)
        job = (await client.submit(roles=ONE_TRAINER))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        lines = (line("event", message="bad"), line("event", message="good"), line("result", metrics={"loss": 1.0}))
        await node.progress(worker, *lines)
        await node.say(worker, WorkerState.SUCCEEDED)
        document = await client.until(job, "succeeded")
        assert document["result"] == {"loss": 1.0}
        found = (await client.user("GET", f"/jobs/{job}/events")).json()["events"]
        assert [event["message"] for event in found if event["kind"] == "worker"] == ["good"]
