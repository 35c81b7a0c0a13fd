from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from rolecall.spec.report import Failure, first_cause

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
