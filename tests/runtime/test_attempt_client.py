"""A worker's calls to a master that answers as it likes."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tests.clock import ManualClock

from rolecall.runtime.attempt_client import AttemptClient
from rolecall.spec.errors import BlobsUnavailable, CheckpointError, NoSuchBlob, QuotaExceeded, StaleAttempt
from rolecall.spec.plan import CheckpointManifest

_MANIFEST = CheckpointManifest(attempt=1, step=1, parts=(), position={})


@contextmanager
def answering(
    statuses: list[int], clock: ManualClock | None = None, *, after_s: float = 0.0
) -> Generator[AttemptClient]:
    """A client of a master that answers with these in turn, each after so long, and with the last one from then on."""
    time = clock or ManualClock()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            time.sleep(after_s)
            self.send_response(statuses.pop(0) if len(statuses) > 1 else statuses[0])
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_PUT = do_POST = _answer  # noqa: N815 - as the library has it

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield AttemptClient(f"http://127.0.0.1:{server.server_port}", "token", "job", 1, clock=time, sleep=time.sleep)
        server.shutdown()


def test_what_the_master_does_not_have_is_distinguished(tmp_path: Path) -> None:
    with answering([404]) as client, pytest.raises(NoSuchBlob):
        client.get("1/part", tmp_path / "part")


def test_what_a_slow_network_or_a_proxy_causes_is_tried_again(tmp_path: Path) -> None:
    with answering([408, 429, 200]) as client:
        client.get("1/part", tmp_path / "fetched")


def test_a_limit_of_what_may_be_stored_ends_the_job_without_another_attempt(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(b"weights")
    with answering([413, 200]) as client, pytest.raises(QuotaExceeded) as refused:
        client.put("part", tmp_path / "part", "0" * 64)
    assert not refused.value.retryable


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_after_a_success_is_the_one_of_a_proxy(tmp_path: Path, status: int) -> None:
    """The master accepted the token, so it is not the master that refuses it: the attempt continues."""
    clock = ManualClock()
    answers = [200, status, 200]
    with answering(answers, clock) as client:
        client.get("1/part", tmp_path / "fetched")
        client.record_checkpoint(_MANIFEST)
        answers[:] = [status]
        with pytest.raises(BlobsUnavailable, match=f"for 30. s: {status} "):
            client.record_checkpoint(_MANIFEST)
        answers[:] = [status, 409]
        with pytest.raises(BlobsUnavailable):
            client.record_checkpoint(_MANIFEST)
        with pytest.raises(StaleAttempt):
            client.record_checkpoint(_MANIFEST)


@pytest.mark.parametrize("status", [401, 403])
def test_a_first_refusal_says_what_to_look_at(tmp_path: Path, status: int) -> None:
    clock = ManualClock()
    remedy = rf"\({status} .*is a proxy between this node and the master at 127\.0\.0\.1"
    with answering([503, status, 200], clock) as client, pytest.raises(CheckpointError, match=remedy) as raised:
        client.get("1/part", tmp_path / "part")
    assert not isinstance(raised.value, BlobsUnavailable)
    assert clock.pauses == [0.0, 0.1, 0.0], "only the 503 is tried again"


def test_a_call_that_fails_after_long_is_tried_again(tmp_path: Path) -> None:
    """The patience begins with the first failure, however long the transfer had taken till then."""
    clock = ManualClock()
    with answering([503, 200], clock, after_s=400) as client:
        client.get("1/part", tmp_path / "fetched")
    assert len(clock.pauses) == 3, "two answers, and the pause between them"


def test_pauses_double_up_to_five_seconds_for_five_minutes(tmp_path: Path) -> None:
    clock = ManualClock()
    with (
        answering([503], clock) as client,
        pytest.raises(BlobsUnavailable, match=r"could neither store nor send files for 30\d s"),
    ):
        client.get("1/part", tmp_path / "fetched")
    assert [pause for pause in clock.pauses if pause][:8] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_a_master_that_stays_away_is_waited_for_once(tmp_path: Path) -> None:
    """A job whose every checkpoint waited for minutes would hardly train."""
    answers = [503] * 1000
    with answering(answers) as client:
        with pytest.raises(BlobsUnavailable):
            client.get("1/part", tmp_path / "fetched")
        left = len(answers)
        with pytest.raises(BlobsUnavailable):
            client.get("1/part", tmp_path / "fetched")
        assert left - len(answers) == 1
        answers[:] = [200, 503, 200]
        client.get("1/part", tmp_path / "fetched")
        client.get("1/part", tmp_path / "fetched")
