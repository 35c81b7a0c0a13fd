"""Fields, redaction and escaping of log records in both formats."""

import json
import logging
import re

import pytest

from rolecall.logs import LogFormat, OncePerReason, about, json_as_text, log_to_stderr, stamp_records

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


def test_a_record_in_json_has_the_same_text_as_one_in_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.125)
    forms: tuple[LogFormat, LogFormat] = ("text", "json")
    written: list[str] = []
    for form in forms:
        log_to_stderr(form=form)
        _LOG.info("nothing to search by")
        _LOG.warning("three\nlines\x1b[2J, ünd more", extra=about("job_placed", job="a\n1", attempt=2))
        try:
            raise ValueError("first\nsecond")
        except ValueError:
            _LOG.exception("failed", extra=about("worker_failed", rank=0))
        written.append(capsys.readouterr().err)
    text, lines = written
    assert "".join(f"{json_as_text(line)}\n" for line in lines.splitlines()) == text
    assert "\n    Traceback " in text


@pytest.mark.parametrize(
    "line",
    [
        "",
        "2026-01-01 10:00:00.000+00:00 INFO test a record in text",
        '{"loss": 0.5}',
        '{"time": "2026-01-01T10:00:00.000+00:00", "loss": 0.5}',
        '{"time": "2026-01-01T10:00:00.000+00:00", "level": "INFO", "logger": "a", "message": 3}',
        '{"time": "2026-01-01T10:00:00.000+00:00", "level": "INFO", "logger": "a", "message": "a part of a lo',
        '{"time": "now"}, {"time": "later"}',
        f'{{"time": "now", "nested": {"[" * 100_000}',
    ],
)
def test_other_lines_are_no_records_in_json(line: str) -> None:
    assert json_as_text(line) is None


def test_fields_of_a_job_s_own_logger_are_kept() -> None:
    line = '{"time": "now", "level": "INFO", "logger": "own", "message": "x", "loss": 0.5, "traceback": "", "at": null}'
    assert json_as_text(line) == "now INFO own x [loss=0.5 at=None]"


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
