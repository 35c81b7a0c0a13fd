"""Fields, redaction and escaping of log records in both formats."""

import json
import logging
import re

import pytest

from rolecall.edge.logs import OncePerReason, about, log_to_stderr, stamp_records

_LOG = logging.getLogger("test")


def test_a_line_ends_with_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr()
    _LOG.info("placed %d workers", 3, extra=about("job_placed", job="a1", attempt=2))
    _LOG.info("nothing to search by")
    placed, plain = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"\S+ \S+ INFO test placed 3 workers \[event=job_placed job=a1 attempt=2\]", placed)
    assert plain.endswith("INFO test nothing to search by")


def test_json_has_a_record_a_line_with_its_traceback_and_no_credentials(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(form="json")
    try:
        raise ValueError("s3://user:secret@host/x\nsecond line")
    except ValueError:
        _LOG.exception("failed\nat https://user:secret@host/", extra=about("worker_failed", job="a1", rank=0, node="n"))
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert (record["event"], record["job"], record["rank"], record["node"]) == ("worker_failed", "a1", 0, "n")
    assert (record["level"], record["logger"]) == ("ERROR", "test")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", record["time"])
    assert "second line" in record["traceback"]
    assert "secret" not in line


def test_the_records_of_a_worker_carry_its_job_attempt_and_rank(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr()
    stamp_records(job="a1", attempt=2, rank=0)
    logging.getLogger("a.library").warning("no fields of its own")
    _LOG.info("another's", extra=about("worker_lost", rank=3))
    plain, other = capsys.readouterr().err.splitlines()
    assert plain.endswith("a.library no fields of its own [job=a1 attempt=2 rank=0]")
    assert other.endswith("[event=worker_lost job=a1 attempt=2 rank=3]")


def test_a_field_can_not_forge_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr()
    _LOG.info("placed", extra=about("job_placed", job="a\x1b[1m\nb"))
    (line,) = capsys.readouterr().err.splitlines()
    assert "\x1b" not in line


def test_a_repeated_failure_is_new_once_per_reason_and_subject() -> None:
    reasons = OncePerReason()
    assert not reasons.end(), "nothing has failed yet"
    assert [reasons.is_new(reason) for reason in ("refused", "refused", "timeout", "refused")] == [
        True,
        False,
        True,
        True,
    ]
    assert reasons.is_new("refused", "another step")
    assert [reasons.end(), reasons.end()] == [True, False]
    assert not reasons.is_new("refused", "another step"), "only the other subject has recovered"
    assert reasons.is_new("refused")


def test_only_the_latest_subjects_are_remembered() -> None:
    reasons = OncePerReason()
    assert all(reasons.is_new("full", str(number)) for number in range(1000))
    assert not reasons.is_new("full", "0")
    assert reasons.is_new("full", "1000")
    assert not reasons.end("1"), "the one whose last failure is the oldest"
    assert reasons.end("0")
    assert reasons.end("1000")
