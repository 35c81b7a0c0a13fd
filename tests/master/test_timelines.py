# pyright: reportPrivateUsage=false
"""Timelines of gangs: on one clock, cut to steps, and as a trace. `test_inspection` tests the way to them."""

import json
import re
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.cpu_time import is_within
from tests.master.test_inspection import WINDOW

from rolecall.kit.pictures import timeline_svg
from rolecall.master.api.inspection import _MAX_SPANS
from rolecall.master.store.records import WorkerRecord
from rolecall.master.timelines import RecordedWindow, newest_spans, silent, timeline, trace, without_schedule
from rolecall.spec.inspection import ClockReading, TimelineDocument
from rolecall.spec.role import Role
from rolecall.spec.state import WorkerState
from rolecall.spec.timeline import Span, Step, Window


def stage(rank: int) -> WorkerRecord:
    return WorkerRecord(
        job="a", attempt=1, rank=rank, role=Role.STAGE, role_rank=rank, node="n", state=WorkerState.RUNNING, pid=1,
        exit_code=None, failure=None, spawned_at=None, joined_at=None,
    )  # fmt: skip


@pytest.mark.slow
def test_the_largest_timeline_is_encoded_in_calls_that_hold_the_lock_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, name = 64, "n" * 48
    spans = tuple(
        Span(name, "communication", 1000 + number / 7, 1 / 3, 12345, 7, number, name)
        for number in range(_MAX_SPANS // ranks)
    )
    recorded = [RecordedWindow(stage(rank), WINDOW.model_copy(update={"spans": spans})) for rank in range(ranks)]
    document = timeline("a", 1, recorded, [], {}, now=WINDOW.at, live=False)
    begin = time.thread_time()
    document.model_dump_json()
    assert is_within(time.thread_time() - begin, 0.1)

    longest, dumps = 0, json.dumps

    def encode(given: Any) -> str:
        nonlocal longest
        text = dumps(given)
        longest = max(longest, len(text))
        return text

    monkeypatch.setattr(json, "dumps", encode)
    assert len(json.loads(trace(document))["traceEvents"]) > _MAX_SPANS - ranks
    assert longest < 10_000


def test_why_there_is_no_picture_of_a_schedule() -> None:
    assert "no pipeline" in without_schedule([replace(stage(0), role=Role.TRAINER)], live=True)
    assert "try again after its next step" in without_schedule([stage(0)], live=True)
    assert "left no complete step" in without_schedule([stage(0)], live=False)


def test_a_timeline_without_windows_is_of_the_present() -> None:
    now = datetime(2030, 1, 2, tzinfo=UTC)
    missing = silent(stage(0), "it is stopped")
    document = timeline("a", 1, [], [missing], {}, now=now, live=True)
    assert (document.at, document.workers, document.silent) == (now, (), (missing,))


def test_a_picture_shows_the_newest_step_that_all_workers_have_completed() -> None:
    def recorded(rank: int, steps: int, begin_s: float) -> RecordedWindow:
        steps_done = tuple(Step(number, begin_s + number, 1.0) for number in range(1, steps + 1))
        spans = (
            Span("whole job", "wait", 0.0, 1000.0, None, None, None, "main"),
            *(Span("F", "compute", begin_s + number, 0.5, number, 0, 0, "main") for number in range(1, steps + 1)),
        )
        window = Window(at=WINDOW.at, clock_s=100.0, steps=steps_done, spans=spans)
        return RecordedWindow(stage(rank), window)

    ahead, behind, other = recorded(0, 6, 10.0), recorded(1, 5, 10.1), recorded(2, 0, 0.0)
    document = timeline("a", 1, [ahead, behind, other], [], {}, now=WINDOW.at, steps=1, live=True)
    assert [[step.number for step in worker.steps] for worker in document.workers] == [[5], [5], []]
    assert [[span.step for span in worker.spans] for worker in document.workers] == [[None, 5], [None, 5], [None]]
    picture = timeline_svg(document)
    assert picture.count("whole job") == 6  # A hint and a label in each of three rows.
    assert re.findall(r">([\d.]+)</text>", picture)[-1] == "1.0"  # The time axis ends with the step, not with the job.


def span(begin_s: float, *, thread: str = "main", micro_batch: int | None = None) -> Span:
    return Span("F", "compute", begin_s, 0.5, 1, 0, micro_batch, thread)


def window(begin_s: float, *, ahead_s: float = 0.0) -> Window:
    """A step and a span; by the worker's wall clock, its other clock is `ahead_s` ahead of that of `WINDOW`."""
    at = WINDOW.at - timedelta(seconds=ahead_s)
    return WINDOW.model_copy(update={"at": at, "steps": (Step(1, begin_s, 1.0),), "spans": (span(begin_s),)})


def on(node: str, rank: int, shown: Window, clock: ClockReading | None = None) -> RecordedWindow:
    return RecordedWindow(replace(stage(rank), node=node), shown, clock)


def shown(recorded: list[RecordedWindow], machines: dict[str, str], **given: Any) -> TimelineDocument:
    return timeline("a", 1, recorded, [], machines, now=WINDOW.at, live=True, **given)


def test_nodes_of_one_machine_share_its_clock_whatever_was_measured() -> None:
    apart = ClockReading(offset_s=40.0, uncertainty_s=0.01)
    recorded = [on("n", 0, window(10.0), apart), on("m", 1, window(12.0, ahead_s=7.0))]
    document = shown(recorded, {"n": "boot", "m": "boot"})
    assert [worker.steps[0].begin_s for worker in document.workers] == [0.0, 2.0]
    assert [worker.spans[0].begin_s for worker in document.workers] == [0.0, 2.0]
    assert [worker.clock_uncertainty_s for worker in document.workers] == [0.0, 0.0]


def test_machines_are_aligned_by_the_best_readings_of_their_clocks() -> None:
    """The wall clock of a machine, which is wrong here, does not count then."""
    recorded = [
        on("n", 0, window(10.0), ClockReading(offset_s=1.0, uncertainty_s=0.5)),
        on("n", 1, window(10.0), ClockReading(offset_s=5.0, uncertainty_s=0.25)),
        on("m", 2, window(100.0, ahead_s=3.0), ClockReading(offset_s=-80.0, uncertainty_s=0.125)),
    ]
    document = shown(recorded, {"n": "one", "m": "other"})
    assert [worker.steps[0].begin_s for worker in document.workers] == [0.0, 0.0, 5.0]
    assert [worker.spans[0].begin_s for worker in document.workers] == [0.0, 0.0, 5.0]
    assert [worker.clock_uncertainty_s for worker in document.workers] == [0.0, 0.0, 0.375]


@pytest.mark.parametrize("measured", [0, 1])
def test_without_a_reading_of_both_machines_their_wall_clocks_align_them(measured: int) -> None:
    recorded = [on("n", 0, window(10.0)), on("m", 1, window(100.0, ahead_s=88.0))]
    reading = ClockReading(offset_s=1000.0, uncertainty_s=0.01)
    recorded[measured] = replace(recorded[measured], clock=reading)
    document = shown(recorded, {"n": "one", "m": "other"})
    assert [worker.steps[0].begin_s for worker in document.workers] == [0.0, pytest.approx(2.0)]
    assert [worker.clock_uncertainty_s for worker in document.workers] == [0.0, None]


def test_a_node_whose_machine_is_unknown_is_a_machine_of_its_own() -> None:
    document = shown([on("n", 0, window(10.0)), on("m", 1, window(10.0))], {})
    assert [worker.clock_uncertainty_s for worker in document.workers] == [0.0, None]


def test_a_timeline_begins_with_its_first_step_or_without_steps_with_its_first_span() -> None:
    early = window(90.0).model_copy(update={"spans": (span(85.0), span(90.5))})
    document = shown([on("n", 0, early)], {})
    assert [one.begin_s for one in document.workers[0].spans] == [-5.0, 0.5]
    ago_s = (WINDOW.at - document.at).total_seconds()
    assert ago_s == pytest.approx(10, abs=1e-3), "the window was read 10 s after the step's begin"
    document = shown([on("n", 0, early.model_copy(update={"steps": ()}))], {})
    assert [one.begin_s for one in document.workers[0].spans] == [0.0, 5.5]


@pytest.mark.parametrize("clock_s", [1e12, -1e12])
def test_a_clock_that_is_not_to_be_trusted_gives_a_time_that_can_be_written(clock_s: float) -> None:
    document = shown([on("n", 0, window(0.0).model_copy(update={"clock_s": clock_s}))], {})
    assert document.at.year in {1970, 9892}
    early = window(0.0).model_copy(update={"spans": (span(-1e12),)})
    found = json.loads(trace(shown([on("n", 0, early)], {})))
    assert found["otherData"]["at"] == "1970-01-01T00:00:00+00:00"


def test_steps_are_compared_on_one_clock() -> None:
    """They take from 10 to 11.5 on the first machine's clock."""
    ahead, late = window(10.0), window(100.0, ahead_s=89.5)
    after = Span("after", "wait", 12.0, 1.0, None, None, None, "main")
    before = Span("before", "wait", 97.0, 1.0, None, None, None, "main")
    ahead = ahead.model_copy(update={"spans": (*ahead.spans, after)})
    late = late.model_copy(update={"spans": (before, *late.spans)})
    document = shown([on("n", 0, ahead), on("m", 1, late)], {"n": "one", "m": "other"}, steps=1)
    assert [[one.name for one in worker.spans] for worker in document.workers] == [["F"], ["F"]]


def test_a_window_is_cut_to_its_newest_spans() -> None:
    whole = WINDOW.model_copy(update={"spans": (span(1.0), span(2.0), span(3.0))})
    assert newest_spans(whole, 3) == whole
    cut = newest_spans(whole, 2)
    assert (cut.cut, cut.spans) == (True, whole.spans[1:])
    assert shown([on("n", 0, cut)], {}).workers[0].cut


def test_a_trace_has_a_process_for_each_worker_and_a_row_for_each_thread() -> None:
    spans = (span(10.0, thread="second", micro_batch=3), span(10.25))
    recorded = [on("n", 0, window(10.0).model_copy(update={"spans": spans})), on("m", 1, window(11.0))]
    document = timeline("a", 2, recorded, [silent(stage(2), "it is stopped")], {}, now=WINDOW.at, live=True)
    found = json.loads(trace(document))
    events = found["traceEvents"]
    names = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one["name"] == "thread_name"}
    assert names == {(0, 0): "steps", (0, 1): "main", (0, 2): "second", (1, 0): "steps", (1, 1): "main"}
    processes = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert processes == {0: "stage-0 (n)", 1: "stage-1 (m)"}
    rows = [(one["name"], one["pid"], one["tid"], one["ts"]) for one in events if one["ph"] == "X"]
    assert rows == [
        ("step 1", 0, 0, 0.0), ("F 3", 0, 2, 0.0), ("F", 0, 1, 0.25e6), ("step 1", 1, 0, 1e6), ("F", 1, 1, 1e6)
    ]  # fmt: skip
    other = found["otherData"]
    assert (other["job"], other["attempt"], other["silent"]) == ("a", 2, {"stage-2": "it is stopped"})
    assert other["clock_uncertainty_s"] == {"stage-0": 0.0, "stage-1": None}


def test_a_trace_begins_with_its_first_event_even_before_the_earliest_step() -> None:
    """A worker keeps more spans than those of its last steps."""
    early = window(90.0).model_copy(update={"spans": (span(85.0), span(90.5))})
    document = shown([on("n", 0, early)], {})
    found = json.loads(trace(document))
    times = {(one["name"], one["ts"]) for one in found["traceEvents"] if one["ph"] == "X"}
    assert times == {("F", 0.0), ("step 1", 5e6), ("F", 5.5e6)}
    assert datetime.fromisoformat(found["otherData"]["at"]) == document.at - timedelta(seconds=5)
