"""The delays before repeated attempts."""

from itertools import islice

import pytest

from rolecall.retry import delay_s, delays_s


def test_delays_double_up_to_a_bound() -> None:
    assert [delay_s(failures, first=0.25, most=4.0) for failures in (1, 2, 3, 5, 6, 5000)] == [0.25, 0.5, 1, 4, 4, 4]


def test_delays_without_jitter_are_exact() -> None:
    assert list(islice(delays_s(first=0.1, most=0.5, jitter=0), 5)) == [0.1, 0.2, 0.4, 0.5, 0.5]


@pytest.mark.parametrize("jitter", [0.25, 0.5])
def test_jitter_only_shortens(jitter: float) -> None:
    delays = list(islice(delays_s(first=1.0, most=1.0, jitter=jitter), 200))
    assert 1 - jitter <= min(delays) < max(delays) <= 1.0
