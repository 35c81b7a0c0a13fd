"""A worker's main, in a process of its own."""

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch
from tests.node.harness import ROOT

from rolecall.runtime.reporter import Reporter
from rolecall.spec.errors import InputError
from rolecall.spec.fork import ForkRequest
from rolecall.spec.plan import GangPlan, WorkerLaunch, WorkerPlan
from rolecall.spec.role import Role
from rolecall.spec.workdir import Workdir
from rolecall.worker import main

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
        key="a1/2/0", launch=launch, workdir=workdir, cache=workdir, master_url="http://127.0.0.1:1", token="t", env={}
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


def test_a_device_without_the_precision_is_named_before_the_rendezvous(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "_device", lambda gpu: torch.device("cuda", 0))
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setenv("ROLECALL_DATA_ROOTS", str(tmp_path))
    (tmp_path / "train.txt").write_text("some words\n")
    forked = request(tmp_path, text={"train": str(tmp_path / "train.txt")}, precision="bfloat16")
    plan = forked.launch.worker.model_copy(update={"role": Role.TRAINER})
    forked = forked.model_copy(
        update={"launch": forked.launch.model_copy(update={"workload": "rnn-lm", "worker": plan})}
    )
    expected = pytest.raises(InputError, match="Tesla T4 does not support bfloat16; set precision to float32")
    with closing(Reporter(tmp_path / "progress.jsonl")) as report, expected:
        main._play(forked, Workdir(tmp_path), report)
