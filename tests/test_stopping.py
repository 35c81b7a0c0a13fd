"""All containers get SIGTERM at the same time, as with `docker compose stop`."""

import os
import signal
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.cluster.jobs import long_job, past_step, workers
from tests.containers import TOKEN, Container, bearer, container, node, until
from tests.running import accepted

from rolecall.master.shutdown import NOTICE_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
ROLES = {"parameter-server-0": "parameter-server", "trainer-0": "trainer"}
GRACE: dict[str, Any] = {"ROLECALL_STOP_GRACE_S": "60", "ROLECALL_CPU_SLOTS": "4"}


@contextmanager
def cluster(folder: Path) -> Generator[list[Container]]:
    """A master's container and two nodes, all registered."""
    with ExitStack() as stack:
        master = stack.enter_context(container(folder / "master-0", ROLECALL_NODE_NAME="master-0", **GRACE))
        own = {"ROLECALL_SLOTS": "1", **GRACE}
        nodes = [stack.enter_context(node(folder / name, master.port, role, **own)) for name, role in ROLES.items()]
        for name in ("master-0", *ROLES):
            until(lambda name=name: master.node(name), 180)
        yield [master, *nodes]


def submit(master: Container, rows: Path, **params: Any) -> str:
    request = long_job(rows, trainers=1, checkpoint_every_steps=100_000, **params)
    return accepted(httpx.post(f"http://127.0.0.1:{master.port}/jobs", headers=bearer(TOKEN), json=request))["id"]


def test_a_gang_stops_with_a_checkpoint_and_resumes_after_the_next_start(tmp_path: Path, rows: Path) -> None:
    with cluster(tmp_path) as containers:
        job = submit(containers[0], rows, max_steps=800)
        until(lambda: past_step(50)(containers[0].ask(f"/jobs/{job}")))
        stopped_at = time.monotonic()
        for one in containers:
            one.terminate()
        assert [one.ends(20) for one in containers] == [0, 0, 0]
        assert time.monotonic() - stopped_at < 10
    with cluster(tmp_path) as (master, *_):
        document = until(lambda: (now := master.ask(f"/jobs/{job}"))["state"] == "succeeded" and now, 120)
        assert [attempt["state"] for attempt in document["attempts"]] == ["paused", "succeeded"]
        assert document["progress"]["start_s"] is not None
        (first,) = [one for one in master.ask(f"/jobs/{job}/events")["events"] if "resumed from the" in one["message"]]
        assert "step" in first["message"]


def program(master: Container) -> psutil.Process:
    """The control program of a master's container."""
    (found,) = [one for one in psutil.Process(master.process.pid).children() if one.cmdline()[-1] == "master"]
    return found


def test_a_master_that_ends_alone_does_not_wait_for_running_jobs(tmp_path: Path, rows: Path) -> None:
    with cluster(tmp_path) as (master, *_):
        job = submit(master, rows)
        until(lambda: past_step(10)(master.ask(f"/jobs/{job}")))
        ended = program(master)
        stopped_at = time.monotonic()
        ended.terminate()
        ended.wait(20)
        assert time.monotonic() - stopped_at < NOTICE_S + 4
        before = until(lambda: master.ask(f"/jobs/{job}"))
        after = until(lambda: past_step(before["progress"]["step"])(now := master.ask(f"/jobs/{job}")) and now)
        assert len(after["attempts"]) == 1


def test_a_second_signal_ends_the_master_immediately(tmp_path: Path, rows: Path) -> None:
    with cluster(tmp_path) as (master, _, trainer):
        job = submit(master, rows)
        gang = until(lambda: past_step(10)(now := master.ask(f"/jobs/{job}")) and workers(now))
        os.kill(
            gang["trainer-0"]["pid"], signal.SIGSTOP
        )  # So that it can't end before the node kills it as unresponsive.
        trainer.terminate()
        until(lambda: master.node("trainer-0", draining=True))
        ended = program(master)
        ended.terminate()
        with pytest.raises(psutil.TimeoutExpired):
            ended.wait(0.5)
        ended.terminate()
        ended.wait(3)
