# pyright: standard
"""Event files for TensorBoard, read with its own format."""

import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue] - generated

from rolecall.spec.api import Series
from rolecall.spec.errors import MissingPackage, TrackerError
from rolecall.spec.role import Role
from rolecall.trackers import tensorboard
from rolecall.trackers.tensorboard import EventFiles

from .documents import job

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def events(run: Path) -> Iterator[Any]:
    """The events in a run's files: records of a length, its checksum, the event, and its checksum."""
    for path in run.glob("events.out.tfevents.*"):
        content = path.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            yield Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]


def scalars(run: Path) -> list[tuple[str, int, float, float]]:
    found = ((event, value) for event in events(run) for value in event.summary.value if value.HasField("simple_value"))
    return [(value.tag, event.step, value.simple_value, event.wall_time) for event, value in found]


def series(*steps: int, attempt: int = 1) -> Series:
    points = [{"step": step, "at": AT.isoformat(), "epoch": 1, "loss": step / 2, "note": "text"} for step in steps]
    return Series(attempt=attempt, rank=1, role=Role.TRAINER, role_rank=0, points=points)


def test_each_step_of_each_attempt_is_written_once(tmp_path: Path) -> None:
    runs = EventFiles(tmp_path)
    runs.write(job("job"), [series(1, 2)], [])
    runs.write(job("job"), [series(1, 2, 3), series(2, attempt=2)], [])
    runs.close()
    first = scalars(tmp_path / "job/attempt-1/trainer-0")
    assert first == [("loss", step, step / 2, AT.timestamp()) for step in (1, 2, 3)]
    assert [one[1] for one in scalars(tmp_path / "job/attempt-2/trainer-0")] == [2]
    assert runs.count == 4


def test_a_later_call_replaces_the_files_of_an_earlier_one(tmp_path: Path) -> None:
    for _ in range(2):
        runs = EventFiles(tmp_path)
        runs.write(job("job"), [series(1)], [])
        runs.close()
    assert len(scalars(tmp_path / "job/attempt-1/trainer-0")) == 1


def test_the_scores_of_an_evaluation_are_a_second_point_of_their_step(tmp_path: Path) -> None:
    runs, training = EventFiles(tmp_path), series(1, 2)
    scores = training.model_copy(update={"points": [{"step": 2, "at": AT.isoformat(), "validation_auc": 0.75}]})
    for one in (training, scores, scores):
        runs.write(job("job"), [one], [])
    runs.close()
    assert [one[:3] for one in scalars(tmp_path / "job/attempt-1/trainer-0")][-1] == ("validation_auc", 2, 0.75)
    assert runs.count == 3


def test_the_files_of_many_workers_are_not_all_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "_MAX_WRITERS", 3)
    runs = EventFiles(tmp_path)
    for step in (1, 2):
        for attempt in range(1, 9):
            runs.write(job("job"), [series(step, attempt=attempt)], [])
            assert sum(Path(file.path).is_relative_to(tmp_path) for file in psutil.Process().open_files()) <= 3
    runs.close()
    for attempt in range(1, 9):
        assert sorted(one[1] for one in scalars(tmp_path / f"job/attempt-{attempt}/trainer-0")) == [1, 2]


def test_the_number_of_different_values_is_limited(tmp_path: Path) -> None:
    point = {"step": 1, "at": AT.isoformat()} | {f"value {number}": 1.0 for number in range(2000)}
    runs = EventFiles(tmp_path)
    runs.write(job("job"), [series(1).model_copy(update={"points": [point]})], [])
    runs.close()
    assert runs.count == 1000


def test_the_attempt_after_a_retry_is_added_when_the_files_are_closed(tmp_path: Path) -> None:
    runs = EventFiles(tmp_path)
    runs.write(job("job"), [series(1)], [])
    runs.forget("job")
    runs.write(job("job"), [series(2, attempt=2)], [])
    runs.close()
    assert [one[1] for attempt in (1, 2) for one in scalars(tmp_path / f"job/attempt-{attempt}/trainer-0")] == [1, 2]


def test_a_folder_that_can_not_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TrackerError, match=r"event files in .* can't be written"):
        EventFiles(tmp_path / "file").write(job("job"), [series(1)], [])


def test_the_remedy_for_the_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(tensorboard, "import_module", missing)
    with pytest.raises(MissingPackage, match=r"pip install 'rolecall\[tensorboard\]'"):
        EventFiles(tmp_path)
