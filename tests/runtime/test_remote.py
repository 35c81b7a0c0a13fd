# pyright: standard
"""Calls between the ranks of a gang."""

import re
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from tests.measured import increases, measured
from tests.own_process import own_rpc
from tests.ports import free_port
from torch.distributed import rpc

from rolecall.runtime import remote
from rolecall.runtime.remote import Mailbox, StepBarrier, call, call_limit, passed_on
from rolecall.spec.errors import CallTimeout
from rolecall.spec.metric import RPC_CALLS, RPC_RECEIVED, RPC_SECONDS, RPC_SENT
from rolecall.testing.gang import processes


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


def test_a_request_is_served_by_the_thread_that_waits() -> None:
    mailbox: Mailbox[int, tuple[int, str]] = Mailbox()
    futures = []
    poster = threading.Thread(target=lambda: futures.append(mailbox.post(20)), name="rpc")
    poster.start()
    served = mailbox.answer_one(lambda request: (request + 1, threading.current_thread().name))
    poster.join()
    assert served == (21, "MainThread")
    assert futures[0].wait() == served


def test_an_error_goes_up_and_is_no_answer() -> None:
    mailbox: Mailbox[None, None] = Mailbox()
    future = mailbox.post(None)

    def fail(_: None) -> None:
        raise ValueError("no such file")

    with pytest.raises(ValueError, match="no such file"):
        mailbox.answer_one(fail)
    assert not future.done()


def test_a_step_barrier_answers_all_when_the_last_has_come_in_the_ranks_order() -> None:
    settled: list[list[str]] = []

    def settle(shares: list[str]) -> int:
        settled.append(shares)
        return len(shares)

    barrier: StepBarrier[str, int] = StepBarrier(3, settle)
    futures = [barrier.join(7, rank, f"rank {rank}") for rank in (2, 0)]
    later = barrier.join(8, 2, "early for the next step")
    assert not any(future.done() for future in futures)
    futures.append(barrier.join(7, 1, "rank 1"))
    assert settled == [["rank 0", "rank 1", "rank 2"]]
    assert [future.wait() for future in futures] == [3, 3, 3]
    assert not later.done()


def test_what_follows_an_answer_waits_for_it_even_if_its_share_comes_later() -> None:
    settled: list[str] = []
    barrier: StepBarrier[str, int] = StepBarrier(2, lambda shares: settled.extend(shares) or len(settled))
    early = barrier.after(4, 0)
    barrier.join(4, 0, "a")
    late, next_step = barrier.after(4, 0), barrier.after(5, 0)
    assert not any(one.done() for one in (early, late, next_step))
    barrier.join(4, 1, "b")
    assert (early.wait(), late.wait()) == (2, 2)
    assert barrier.after(4, 1).done()
    assert barrier.after(3, 1).done(), "an earlier one"
    assert not next_step.done()


def test_the_error_of_a_step_remains_when_the_next_one_has_an_answer() -> None:
    barrier: StepBarrier[bool, None] = StepBarrier(1, lambda shares: None if shares[0] else {}["no row"])
    barrier.join(0, 0, False)
    barrier.join(1, 0, True)
    assert barrier.after(1, 0).wait() is None
    with pytest.raises(KeyError, match="no row"):
        barrier.after(0, 0).wait()


def test_a_single_caller_waits_only_for_its_own_answer() -> None:
    barrier: StepBarrier[str, None] = StepBarrier(1, lambda _: None)
    barrier.join(4, 0, "a")
    assert barrier.after(4, 0).done()
    assert not barrier.after(4, 1).done()


def test_others_can_join_a_step_barrier_while_an_answer_is_given() -> None:
    barrier: StepBarrier[str, None] = StepBarrier(1, lambda _: None)
    joined = threading.Event()

    def follow(_: torch.futures.Future[None]) -> None:
        other = threading.Thread(target=lambda: (barrier.join(4, 1, "b"), joined.set()))
        other.start()
        other.join(10)

    barrier.after(4, 0).add_done_callback(follow)
    barrier.join(4, 0, "a")
    assert joined.is_set()


def test_each_caller_of_a_step_barrier_gets_an_error() -> None:
    def fail(_: list[str]) -> None:
        raise ValueError("no gradient")

    barrier: StepBarrier[str, None] = StepBarrier(2, fail)
    futures = [barrier.after(1, 1), *(barrier.join(1, rank, "share") for rank in range(2))]
    for future in futures:
        with pytest.raises(ValueError, match="no gradient"):
            future.wait()


@pytest.mark.slow
def test_a_failed_future_is_an_error_at_the_caller() -> None:
    """The caller is in another process, and the function is an `async_execution` call."""
    port = free_port()
    ours, theirs = processes.Pipe()
    ranks = [processes.Process(target=_rank, args=(rank, port, theirs), daemon=True) for rank in range(2)]
    for process in ranks:
        process.start()
    assert ours.poll(60)
    assert re.search(r"raised .*no gradient for this step", ours.recv(), re.DOTALL)
    for process in ranks:
        process.join(30)


_may_answer = threading.Event()


def _first_row(tensors: list[torch.Tensor]) -> torch.Tensor:
    _may_answer.wait()
    return tensors[0][0]


@pytest.mark.filterwarnings("ignore:You are using a Backend:UserWarning")  # of the Gloo groups that torch creates
def test_a_call_is_counted_with_its_time_and_the_bytes_of_its_tensors(tmp_path: Path) -> None:
    counted, peer = (RPC_CALLS, RPC_SENT, RPC_RECEIVED, RPC_SECONDS), "parameter-server"
    _may_answer.clear()
    with own_rpc(tmp_path, graceful=False) as name:
        before, is_counted = measured(*counted, label=peer), threading.Event()
        answer = call(name, _first_row, [torch.ones(2, 3)])
        answer.add_done_callback(lambda _: is_counted.set())  # Callbacks run in the order in which they were added.
        _may_answer.set()
        assert is_counted.wait(10)
    *counts, seconds = increases(before, *counted, label=peer)
    assert counts == [1, 24, 12]
    assert 0 < seconds < 10


@pytest.mark.filterwarnings("ignore:You are using a Backend:UserWarning")  # of the Gloo groups that torch creates
def test_a_failed_call_is_counted_without_another_error(tmp_path: Path) -> None:
    with own_rpc(tmp_path, graceful=False) as name:
        answer = call(name, int, "none")
        with pytest.raises(ValueError, match="none"):
            answer.wait()
        remote._count(answer, 0.0, "parameter-server")


def test_only_the_error_of_a_slow_call_becomes_one_that_names_the_parameter() -> None:
    with pytest.raises(RuntimeError, match="connection reset by peer"), call_limit(7.5):
        raise RuntimeError("connection reset by peer")
    with (
        pytest.raises(CallTimeout, match=r"longer than rpc.timeout_s = 7.5 seconds; set rpc.timeout_s"),
        call_limit(7.5),
    ):
        raise RuntimeError("RPCErr:1:RPC ran for more than set timeout (7500 ms) and will now be marked with an error")
