import threading

import pytest

from rolecall.runtime.remote import Mailbox


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
