"""From the lines of progress streams to what users see of them."""

import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from rolecall.master.progress import advance, series
from rolecall.spec.job import Progress
from rolecall.spec.report import ProgressLine

LINE = b'{"kind":"step","at":"2026-01-01T00:00:00Z","step":%d,"metrics":{"loss":0.5}}'


@pytest.mark.parametrize(("steps", "most"), [(0, 10), (1, 10), (10, 10), (11, 10), (41, 10), (1234, 100)])
def test_a_series_is_thinned_evenly_and_ends_with_the_last_step(steps: int, most: int) -> None:
    found = [point["step"] for point in series((LINE % step for step in range(1, steps + 1)), most)]
    assert len(found) <= most + 1
    assert found[-1:] == ([steps] if steps else [])
    assert len(found) >= min(steps, most // 2)
    gaps = [later - earlier for earlier, later in pairwise(found)]
    assert not gaps or max(gaps[1:-1], default=1) == min(gaps[1:-1], default=1)


def test_a_long_series_takes_little_memory() -> None:
    def lines() -> Iterator[bytes]:
        yield from (LINE % step for step in range(20_000))

    series((LINE % 1,), 10)
    tracemalloc.start()
    series(lines(), 10)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_job_s_progress_holds_a_bounded_number_of_metrics() -> None:
    progress = Progress()
    for line in range(30):
        names = {f"{line}-{name}": 1.0 for name in range(100)}
        progress = advance(progress, ProgressLine(kind="step", at=datetime.now(UTC), step=line, metrics=names))
    assert len(progress.metrics) == 1000
