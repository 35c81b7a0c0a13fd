"""The events of a job as people read them."""

from datetime import UTC, datetime, timedelta

from rolecall.spec.api import Event
from rolecall.spec.event_order import in_order

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_an_event_that_arrived_late_is_at_its_time() -> None:
    times = {1: 0, 2: 20, 3: 10, 4: 20}
    events = [
        Event(id=id, at=NOW + timedelta(seconds=s), attempt=1, kind="worker" if id == 3 else "k", message="m")
        for id, s in times.items()
    ]
    assert [event.id for event in in_order(events)] == [1, 3, 2, 4]


def test_no_worker_reports_after_what_the_master_recorded_later() -> None:
    kinds = {1: "running", 2: "worker", 3: "worker", 4: "failed"}
    events = [
        Event(id=id, at=NOW + timedelta(days=900 * (kind == "worker"), seconds=id), attempt=1, kind=kind, message="m")
        for id, kind in kinds.items()
    ]
    assert [event.id for event in in_order(events)] == [1, 2, 3, 4]
