from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rolecall.spec.report import Failure, ProgressLine, first_cause

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
failures = st.builds(
    Failure,
    message=st.text(min_size=1),
    consequence=st.booleans(),
    at=st.integers(0, 1000).map(lambda seconds: NOON + timedelta(seconds=seconds)),
)


def test_no_failure_has_no_cause() -> None:
    assert first_cause([]) is None


def test_a_consequence_is_not_the_cause_even_if_it_was_noticed_first() -> None:
    noticed_first = Failure(message="eof", consequence=True, at=NOON)
    killed = Failure(message="killed by SIGKILL", at=NOON + timedelta(milliseconds=50))
    assert first_cause([noticed_first, killed]) == killed


@given(st.lists(failures, min_size=1))
def test_the_cause_is_the_earliest_of_its_kind(several: list[Failure]) -> None:
    cause = first_cause(several)
    assert cause is not None
    assert cause.consequence == all(failure.consequence for failure in several)
    assert all(cause.at <= failure.at for failure in several if failure.consequence == cause.consequence)


@pytest.mark.parametrize(
    "field",
    [
        f'"step": {10**400}', '"step": -1', '"steps": 1e30', '"epoch": 9223372036854775808', '"port": 65536',
        '"samples_per_s": Infinity', '"samples_per_s": 1e16', '"seconds_left": NaN', '"seconds_left": 1e13',
        '"at": "9999-12-31T23:59:59-23:59"',
    ],
)  # fmt: skip
def test_a_progress_line_with_values_that_can_not_be_stored_is_invalid(field: str) -> None:
    line = '{"kind": "step", "at": "2026-01-01T00:00:00Z", "message": "x", %s}'
    assert ProgressLine.model_validate_json(line % '"step": 9223372036854775807').step == 2**63 - 1
    with pytest.raises(ValidationError):
        ProgressLine.model_validate_json(line % field)


def test_every_database_can_store_the_texts() -> None:
    """PostgreSQL can't store null characters, and UTF-8 can't encode lone surrogates."""
    line = ProgressLine(kind="event", at=NOON, message="a\0b\udc80" + "x" * 10_000, metrics={"n\0": 1.0})
    failure = Failure(message="a\0\udc80", traceback="b\0", at=NOON)
    assert line.message is not None
    assert len(line.message) == 4096
    assert ProgressLine.model_validate_json(line.model_dump_json()) == line
    assert Failure.model_validate_json(failure.model_dump_json()) == failure
    assert "\\u0000" not in line.model_dump_json() + failure.model_dump_json()


def test_a_url_is_redacted_before_a_text_is_cut() -> None:
    text = f"s3://{'k' * 3000}:{'s' * 3000}@bucket/x"
    line = ProgressLine(kind="event", at=NOON, message=text)
    failure = Failure(message=text, traceback=text * 10, at=NOON)
    assert (line.message, failure.message) == ("s3://***@bucket/x", "s3://***@bucket/x")
    assert "ss" not in failure.traceback


def test_the_message_of_a_failure_is_one_line() -> None:
    """A job's code can write the failure itself."""
    failure = Failure.model_validate({"message": "a\nb\r\x1bc" + "\n" * 10_000, "traceback": "b\nc", "at": NOON})
    assert failure.message.startswith("a\\nb\\x0d\\x1bc\\n")
    assert len(failure.message.splitlines()) == 1
    assert len(failure.message) == 4096
    assert failure.traceback == "b\nc"
    assert Failure.model_validate_json(failure.model_dump_json()) == failure


def test_a_line_has_a_bounded_number_of_metrics() -> None:
    with pytest.raises(ValidationError, match="at most 1000"):
        ProgressLine(kind="step", at=NOON, metrics={str(name): 0.0 for name in range(1001)})
