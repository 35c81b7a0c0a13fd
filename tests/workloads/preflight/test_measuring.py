"""RPC measured between two real processes, and one of them stopped."""

import multiprocessing
import os
import signal
import socket
import time
from multiprocessing.connection import Connection

import pytest
from torch.distributed import rpc

from rolecall.network.pairs import Speed
from rolecall.workloads.preflight import measuring
from rolecall.workloads.preflight.measuring import measure

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.workloads.preflight.test_measuring"])
BUDGET_S = 0.5


def _rank(rank: int, port: int, ours: Connection) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", _transports=["uv"])
    rpc.init_rpc(f"rank-{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    measuring.CALL_S = 1.0
    while rank == 0:
        ours.recv()
        begin = time.monotonic()
        ours.send((measure("rank-1", BUDGET_S), time.monotonic() - begin))
    time.sleep(60)


@pytest.mark.slow
def test_speeds_are_figures_and_a_stall_is_told_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ours, theirs = _processes.Pipe()
    ranks = [_processes.Process(target=_rank, args=(rank, port, theirs), daemon=True) for rank in range(2)]
    for process in ranks:
        process.start()
    try:
        speed, took_s = _ask(ours)
        assert isinstance(speed, Speed)
        assert 0 < speed.ping_ms < 1000
        assert speed.sent_mb_per_s > 1
        assert speed.received_mb_per_s > 1
        assert took_s < 10 * BUDGET_S
        assert ranks[1].pid
        os.kill(ranks[1].pid, signal.SIGSTOP)
        why, took_s = _ask(ours)
        assert isinstance(why, str)
        assert "timeout (1000 ms)" in why
        assert took_s < 5
    finally:
        for process in ranks:
            process.kill()
            process.join()


def _ask(ours: Connection) -> tuple[Speed | str, float]:
    ours.send("measure")
    assert ours.poll(60)
    return ours.recv()
