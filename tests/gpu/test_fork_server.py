"""A worker of the fork server uses CUDA, which the server itself never does: CUDA does not survive a fork."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.gpu.jobs import ON_GPU, TRAINER, gpu_uuids

from rolecall.spec.fork import FORK_REPLY, Exited, ForkReply, ForkRequest, Ready
from rolecall.spec.plan import GangPlan, WorkerLaunch, WorkerPlan


def request(folder: Path, gpu: str | None) -> ForkRequest:
    folder.mkdir()
    worker = WorkerPlan(rank=0, role=TRAINER, role_rank=0, node="here", threads=1, gpu=gpu)
    launch = WorkerLaunch(
        job="job",
        attempt=1,
        workload="none",
        params={},
        worker=worker,
        gang=GangPlan(workers=(worker,)),
        master_addr="",
    )
    env = {"CUDA_VISIBLE_DEVICES": gpu or ""}
    cache = folder.parent / "cache"
    return ForkRequest(
        key=folder.name, launch=launch, workdir=folder, data=cache, cache=cache, master_url="", token="", env=env
    )


def test_two_confined_workers_compute_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    ours, theirs = socket.socketpair()
    command = [
        sys.executable,
        "-m",
        "rolecall.worker.fork_server",
        str(theirs.fileno()),
        "--play",
        "tests.gpu.plays:play",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    with (
        ours,
        ours.makefile("rwb", buffering=0) as channel,
        subprocess.Popen(command, env=environment, pass_fds=(theirs.fileno(),)) as server,
    ):
        theirs.close()

        def receive() -> ForkReply:
            return FORK_REPLY.validate_json(channel.readline())

        try:
            assert receive() == Ready()
            for number in range(2):
                asked = request(tmp_path / f"worker-{number}", gpu_uuids()[0] if ON_GPU else None)
                channel.write(asked.model_dump_json().encode() + b"\n")
                assert receive().kind == "forked"
                ended = receive()
                assert isinstance(ended, Exited)
                log = (tmp_path / f"worker-{number}" / "log.txt").read_text()
                assert ended.status == 0, log
                found = json.loads(log.splitlines()[-1])
                assert not found["bad_fork"]
                if ON_GPU:
                    assert found["devices"] == 1
                    assert found["error"] < 1e-6
            opened = [os.readlink(path) for path in Path(f"/proc/{server.pid}/fd").iterdir()]
            assert not [path for path in opened if path.startswith("/dev/nvidia")]
        finally:
            server.kill()
