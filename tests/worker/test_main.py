# pyright: standard
"""A worker's main, in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.node.harness import ROOT

from rolecall.landlock import READ
from rolecall.spec.errors import InputError, NonFiniteLoss, QuotaExceeded, WorkloadError
from rolecall.spec.fork import ForkRequest
from rolecall.spec.plan import GangPlan, WorkerLaunch, WorkerPlan
from rolecall.spec.role import Role
from rolecall.worker.main import _failure
from rolecall.worker.sandbox import Sandbox

PROGRAM = """
import sys
from rolecall.spec.fork import ForkRequest
from rolecall.worker.main import play
sys.exit(play(ForkRequest.model_validate_json(sys.argv[1])))
"""

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "services"), "ROLECALL_SANDBOX": "off"}


def request(workdir: Path, **params: object) -> ForkRequest:
    """A worker whose first call to the master fails, if its parameters are valid."""
    plan = WorkerPlan(rank=0, role=Role.OBSERVER, role_rank=0, node="n", threads=1)
    launch = WorkerLaunch(
        job="a1", attempt=2, workload="preflight", params=params, worker=plan, master_addr="127.0.0.1",
        gang=GangPlan(workers=(plan,), addresses={"n": "127.0.0.1"}),
    )  # fmt: skip
    return ForkRequest(
        key="a1/2/0",
        launch=launch,
        workdir=workdir,
        data=workdir,
        cache=workdir,
        master_url="http://127.0.0.1:1",
        token="t",
        env={},
    )


@pytest.mark.slow
def test_every_record_of_a_worker_carries_its_job_attempt_and_rank(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, request(tmp_path).model_dump_json()]
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as worker:
        try:
            assert worker.stderr is not None
            line = next(line for line in worker.stderr if "the master is unavailable" in line)
            assert line.endswith(" [event=master_unavailable job=a1 attempt=2 rank=0]\n")
        finally:
            worker.kill()


@pytest.mark.slow
def test_the_failure_of_a_worker_is_a_record_too(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, request(tmp_path, sizes="many").model_dump_json()]
    environment = ENVIRONMENT | {"ROLECALL_LOG_FORMAT": "json"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    (record,) = [json.loads(line) for line in ended.stderr.splitlines()]
    assert (record["event"], record["job"], record["attempt"], record["rank"]) == ("worker_failed", "a1", 2, 0)
    assert "ValidationError" in record["traceback"]


class Mute(RuntimeError):
    """An error without a text."""

    def __str__(self) -> str:
        raise SystemExit("no text")


def test_an_error_that_can_not_be_formatted_is_reported_with_its_type() -> None:
    failure = _failure(Mute(), Sandbox())
    assert failure.message == "Mute: <exception str() failed>"
    assert "Mute: <exception str() failed>" in failure.traceback
    assert failure.retryable
    assert not failure.consequence


@pytest.mark.parametrize("kind", [InputError, NonFiniteLoss, QuotaExceeded])
def test_a_users_mistake_is_reported_without_a_traceback(kind: type[WorkloadError]) -> None:
    failure = _failure(kind("line 3 of train.csv has 2 columns, not 3"), Sandbox())
    assert failure.message == f"{kind.__name__}: line 3 of train.csv has 2 columns, not 3"
    assert failure.traceback == ""
    assert not failure.retryable


def _loop() -> BaseException:
    first, second = PermissionError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def _link_to_itself(folder: Path) -> BaseException:
    (folder / "link").symlink_to("link")
    return PermissionError(13, "refused", str(folder / "link"))


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "make", [lambda folder: _loop(), lambda folder: PermissionError(13, "refused", "a\0b"), _link_to_itself]
)
def test_an_unusual_refusal_is_reported_too(tmp_path: Path, make: Callable[[Path], BaseException]) -> None:
    assert _failure(make(tmp_path), Sandbox([(tmp_path, READ)])).message.startswith("PermissionError: ")
