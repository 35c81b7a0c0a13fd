"""Jobs for the tests of trackers."""

from datetime import UTC, datetime, timedelta
from typing import Any

from rolecall.spec.job import JobDocument, Progress
from rolecall.spec.role import Role
from rolecall.spec.state import JobState

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def job(id: str, state: JobState = JobState.RUNNING, **fields: Any) -> JobDocument:
    given: dict[str, Any] = {
        "name": "",
        "workload": "rnn-lm",
        "roles": {Role.TRAINER: 2},
        "priority": 0,
        "reason": None,
        "waiting_for": None,
        "progress": Progress(step=2),
        "created_at": START,
        "started_at": START,
        "ended_at": START + timedelta(minutes=1) if state.ended else None,
        "params": {},
        "max_restarts": 3,
        "deadline_s": None,
        "attempts": [],
        "result": None,
    }
    return JobDocument(id=id, state=state, **(given | fields))
