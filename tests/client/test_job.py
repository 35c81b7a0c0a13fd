# pyright: reportPrivateUsage=false
"""A job through the Python client, with a real master."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from xml.etree import ElementTree

import pytest
from tests.clock import ManualClock
from tests.master.harness import ONE_TRAINER, TOKEN, line, make_settings, one_trainer, serving

from rolecall.client import Client, ConfigurationError, Connection, Job, Refused, UnknownName
from rolecall.client.plot import curves
from rolecall.spec.state import JobState, WorkerState

_T = TypeVar("_T")
REQUEST = {"workload": "toy", "roles": ONE_TRAINER, "labels": {"team": "a"}}


@pytest.mark.slow
async def test_a_job_is_submitted_followed_read_and_changed(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path / "master")) as master:
        node = await one_trainer(master)
        with Client(Connection(str(master.http.base_url), TOKEN)) as client:

            def call(work: Callable[[], _T]) -> asyncio.Future[_T]:
                return asyncio.ensure_future(asyncio.to_thread(work))

            plan = await call(lambda: client.plan(REQUEST))
            assert [worker.node for worker in plan.workers] == ["trainer-0"]
            job = await call(lambda: Job.submit(client, REQUEST))
            following = call(lambda: [event.kind for event in job.follow()])
            (worker,) = await node.workers()
            await node.say(worker, WorkerState.RUNNING)
            steps = [line("step", step=step, metrics={"loss": 1 / step}) for step in (1, 2, 3)]
            await node.progress(worker, *steps, line("step", step=4, metrics={"validation_loss": 0.5}))
            changed = await call(lambda: job.update({"labels": {"team": "b"}, "name": "new"}))
            assert (changed.labels, changed.name) == ({"team": "b"}, "new")
            clock = ManualClock()
            with pytest.raises(TimeoutError, match="after 1 s"):
                await call(lambda: Job(client, job.id, clock=clock, sleep=clock.sleep).wait(1))
            assert 1 < clock.now < 2
            await master.checkpoint(job.id, 1, 3)
            stored = (await master.worker("PUT", job.id, 1, "/attempts/1/blobs/model", content=b"model")).json()
            await master.worker("POST", job.id, 1, "/attempts/1/artifacts", json={**stored, "name": "model"})
            await node.say(worker, WorkerState.SUCCEEDED, exit_code=0)
            assert (await call(job.wait)).state is JobState.SUCCEEDED
            kinds = await following
            assert (kinds[0], kinds[-1], "change" in kinds) == ("queued", "succeeded", True)
            rows = await call(job.metrics)
            assert [(row["step"], row["loss"], row["role"]) for row in rows] == [
                *((step, 1 / step, "trainer") for step in (1, 2, 3)),
                (4, None, "trainer"),
            ]
            assert rows[0].keys() == rows[-1].keys() >= {"attempt", "rank", "role_rank", "validation_loss"}
            assert {type(value) for row in rows for value in row.values()} <= {int, float, str, type(None)}
            picture = await call(job.plot)
            assert ElementTree.fromstring(picture._repr_svg_()).tag.endswith("svg")
            with pytest.raises(ConfigurationError, match="no 'auc' yet; there are: loss"):
                await call(lambda: job.plot("auc"))
            assert (await call(lambda: job.download("model", tmp_path / "model"))).read_bytes() == b"model"
            assert (await call(lambda: job.download_checkpoint(3, tmp_path / "c.zip"))).read_bytes()[:2] == b"PK"
            assert [one.id for one in await call(lambda: client.jobs(label="team=b"))] == [job.id]
            with pytest.raises(Refused, match="did you mean 'steps'"):
                await call(lambda: Job.submit(client, {"workload": "toy", "params": {"step": 1}}))
            await call(job.delete)
            with pytest.raises(UnknownName):
                await call(job.document)


def test_a_later_attempt_replaces_the_steps_that_it_repeats() -> None:
    def row(attempt: int, step: int, loss: float | None) -> dict[str, object]:
        return {"attempt": attempt, "rank": 0, "role": "trainer", "role_rank": 0, "step": step, "loss": loss}

    rows = [row(2, 2, 0.2), row(1, 1, 1.0), row(1, 2, 9.0), row(2, 3, None)]
    (series,) = curves(rows, "loss", "title").series
    assert [point.y for point in series.points] == [1.0, 0.2]
