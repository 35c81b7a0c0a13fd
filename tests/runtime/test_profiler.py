"""Profiles of a worker's steps, by the real profiler of torch."""

import gzip
import json
from pathlib import Path

import pytest
import torch

from rolecall.runtime.artifacts import Artifacts
from rolecall.runtime.blobs import SharedBlobs
from rolecall.runtime.profiler import Profiler
from rolecall.runtime.timeline import Timeline
from rolecall.spec.errors import Conflict, QuotaExceeded
from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.wire import ArtifactNotice


class Records:
    """A master that counts artifacts, and may refuse them."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.recorded: list[str] = []
        self._refusal = refusal

    def record_checkpoint(self, manifest: CheckpointManifest) -> None:
        raise NotImplementedError

    def record_artifact(self, notice: ArtifactNotice) -> None:
        if self._refusal is not None:
            raise self._refusal
        self.recorded.append(notice.name)


def make_profiler(folder: Path, timeline: Timeline, records: Records, events: list[str]) -> Profiler:
    artifacts = Artifacts(SharedBlobs(f"file://{folder / 'blobs'}", "job", 1), records, 1)
    scratch = folder / "scratch"
    scratch.mkdir()
    return Profiler("trainer-0", torch.device("cpu"), timeline, artifacts, scratch=scratch, on_event=events.append)


def train(timeline: Timeline, *steps: int) -> None:
    for step in steps:
        with timeline.step(step):
            torch.ones(8, 8).cos()


def test_a_profile_has_the_steps_that_were_asked_for(tmp_path: Path) -> None:
    timeline, records, events = Timeline(), Records(), list[str]()
    profiler = make_profiler(tmp_path, timeline, records, events)
    train(timeline, 1)
    assert profiler.start(2) == "profile-trainer-0.json.gz"
    with pytest.raises(Conflict, match="already recording"):
        profiler.start(1)
    train(timeline, 2, 3, 4, 5)
    profiler.close()
    assert records.recorded == ["profile-trainer-0.json.gz"]
    assert events == ["the profile of trainer-0, steps 2 to 3, is stored as artifact profile-trainer-0.json.gz"]
    (stored,) = (tmp_path / "blobs").rglob("*profile-trainer-0*")
    trace = json.loads(gzip.decompress(stored.read_bytes()))["traceEvents"]
    assert sum(event["name"] == "aten::cos" for event in trace) == 2
    assert not any((tmp_path / "scratch").iterdir())


def test_a_profile_of_a_role_that_ends_has_its_last_steps(tmp_path: Path) -> None:
    timeline, events = Timeline(), list[str]()
    profiler = make_profiler(tmp_path, timeline, Records(), events)
    train(timeline, 1)
    profiler.start(100)
    train(timeline, 2)
    profiler.close()
    assert "the steps from 2 on, is stored" in events[0]


def test_a_worker_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="it runs no steps"):
        make_profiler(tmp_path, Timeline(), Records(), []).start(1)


def test_a_profile_that_can_not_be_stored_ends_no_training(tmp_path: Path) -> None:
    timeline, events = Timeline(), list[str]()
    profiler = make_profiler(tmp_path, timeline, Records(QuotaExceeded("the job has no space left")), events)
    train(timeline, 1)
    profiler.start(1)
    train(timeline, 2, 3)
    profiler.close()
    assert events == ["the profile of trainer-0, steps 2 to 2, can't be stored: the job has no space left"]
    assert not any((tmp_path / "scratch").iterdir())
