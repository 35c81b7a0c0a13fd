"""The error at a caller in another process when the function of an `async_execution` call fails."""

import multiprocessing
import re
from multiprocessing.connection import Connection

import torch
from torch.distributed import rpc

from rolecall.runtime.remote import passed_on

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.runtime.test_remote_errors"])


@rpc.functions.async_execution
def _fail() -> torch.futures.Future[None]:
    future: torch.futures.Future[None] = torch.futures.Future()
    future.set_exception(ValueError("no gradient for this step"))  # pyright: ignore[reportArgumentType] - asks for a result
    return passed_on(future)


def _rank(rank: int, port: int, answer: Connection) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", _transports=["uv"])
    rpc.init_rpc(f"rank-{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        try:
            answer.send(repr(torch.futures.wait_all([rpc.rpc_async("rank-1", _fail)])))
        except Exception as error:  # noqa: BLE001 - the test checks it
            answer.send(f"raised {error}")
    rpc.shutdown()


def test_a_failed_future_is_an_error_at_the_caller(free_port: int) -> None:
    ours, theirs = _processes.Pipe()
    ranks = [_processes.Process(target=_rank, args=(rank, free_port, theirs), daemon=True) for rank in range(2)]
    for process in ranks:
        process.start()
    assert ours.poll(60)
    assert re.search(r"raised .*no gradient for this step", ours.recv(), re.DOTALL)
    for process in ranks:
        process.join(30)
