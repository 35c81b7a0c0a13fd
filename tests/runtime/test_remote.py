import threading

import pytest

from rolecall.runtime.remote import Mailbox, StepBarrier


def test_a_request_is_served_by_the_thread_that_waits() -> None:
    mailbox: Mailbox[int, tuple[int, str]] = Mailbox()
    futures = []
    poster = threading.Thread(target=lambda: futures.append(mailbox.post(20)), name="rpc")
    poster.start()
    served = mailbox.serve(lambda request: (request + 1, threading.current_thread().name))
    poster.join()
    assert served == (21, "MainThread")
    assert futures[0].wait() == served


def test_an_error_goes_up_and_is_no_answer() -> None:
    mailbox: Mailbox[None, None] = Mailbox()
    future = mailbox.post(None)

    def fail(_: None) -> None:
        raise ValueError("no such file")

    with pytest.raises(ValueError, match="no such file"):
        mailbox.serve(fail)
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


def test_everyone_of_a_step_barrier_hears_of_an_error() -> None:
    def fail(_: list[str]) -> None:
        raise ValueError("no gradient")

    barrier: StepBarrier[str, None] = StepBarrier(2, fail)
    futures = [barrier.join(1, rank, "share") for rank in range(2)]
    for future in futures:
        with pytest.raises(ValueError, match="no gradient"):
            future.wait()
