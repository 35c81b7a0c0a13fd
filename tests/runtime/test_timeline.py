# pyright: reportPrivateUsage=false
"""The recorder of phases: what it keeps, its bounds, and other threads."""

import threading
import time
from collections.abc import Iterator

import pytest
from tests.clock import ManualClock
from tests.cpu_time import slowness

from rolecall.runtime.timeline import Timeline
from rolecall.spec.timeline import MAX_STEPS, WINDOW_BYTES, Activity, Window


def test_steps_have_their_spans() -> None:
    timeline = Timeline()
    for _ in timeline.steps(iter("ab"), first=7):
        with timeline.span("outer"), timeline.span("inner", "wait", stage=1, micro_batch=3):
            pass
    window = timeline.window(WINDOW_BYTES)
    assert [step.number for step in window.steps] == [7, 8]
    assert timeline.step_count == 2
    assert not timeline.is_in_step
    seventh = [span for span in window.spans if span.step == 7]
    assert [span.name for span in seventh] == ["data", "outer", "inner"]
    inner = seventh[2]
    assert (inner.category, inner.stage, inner.micro_batch, inner.thread) == ("wait", 1, 3, "main")
    step = window.steps[0]
    assert all(step.begin_s <= span.begin_s <= step.begin_s + step.seconds for span in seventh)


def test_a_loop_that_ends_early_ends_its_step() -> None:
    timeline = Timeline()
    for _ in timeline.steps(iter(range(9)), first=1):
        break
    assert [step.number for step in timeline.window(WINDOW_BYTES).steps] == [1]


def test_memory_and_bytes_are_bounded_and_it_says_so() -> None:
    timeline = Timeline(max_spans=500)
    for number in range(100):
        with timeline.step(number):
            for _ in range(10):
                with timeline.span("forward"):
                    pass
    window = timeline.window(WINDOW_BYTES)
    assert (len(window.spans), len(window.steps), window.cut) == (500, MAX_STEPS, True)
    assert window.spans[-1].step == 99
    small = timeline.window(40_000)
    assert len(small.model_dump_json()) <= 40_000
    assert small.spans == window.spans[-len(small.spans) :]
    assert Window.model_validate_json(window.model_dump_json()) == window


def test_other_threads_record_while_it_is_read() -> None:
    timeline, stop = Timeline(max_spans=200), threading.Event()

    def record() -> None:
        while not stop.is_set():
            with timeline.span("look-up", "communication"):
                pass

    threads = [threading.Thread(target=record) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        windows = [timeline.window(WINDOW_BYTES) for _ in range(50)]
        assert {span.thread for span in windows[-1].spans} <= {f"thread-{number}" for number in range(3)}
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _spent(timeline: Timeline) -> dict[Activity, float]:
    return {activity: seconds for activity, seconds in timeline.seconds().items() if seconds}


def test_each_second_belongs_to_one_activity() -> None:
    clock = ManualClock()
    timeline = Timeline(clock)
    clock.sleep(1)
    with timeline.step(1):
        clock.sleep(2)
        with timeline.span("look-up", "communication"):
            clock.sleep(4)
            with timeline.span("data", "data"):
                clock.sleep(8)
        clock.sleep(16)
    clock.sleep(32)
    with timeline.span("request", "wait"):
        clock.sleep(64)
    assert _spent(timeline) == {"other": 33, "compute": 18, "communication": 4, "data": 8, "wait": 64}


def test_reading_a_batch_is_data_and_time_after_the_last_step_is_other() -> None:
    clock = ManualClock()
    timeline = Timeline(clock)

    def batches() -> Iterator[int]:
        for batch in range(2):
            clock.sleep(1)
            yield batch
        clock.sleep(4)

    for _ in timeline.steps(batches(), first=1):
        clock.sleep(10)
    clock.sleep(100)
    assert _spent(timeline) == {"data": 6, "compute": 20, "other": 100}


def test_checkpoints_and_evaluations_contain_what_happens_in_them() -> None:
    clock = ManualClock()
    timeline = Timeline(clock)
    with timeline.span("evaluate", "evaluation"), timeline.span("look-up", "communication"):
        clock.sleep(1)
        timeline.record("wait", "wait", 0, 1)
    with timeline.step(1), timeline.span("checkpoint", "checkpoint"), timeline.span("wait", "wait"):
        clock.sleep(2)
    assert _spent(timeline) == {"evaluation": 1, "checkpoint": 2}


def test_an_error_ends_the_activities() -> None:
    clock = ManualClock()
    timeline = Timeline(clock)
    with pytest.raises(ValueError, match="broken"), timeline.step(1), timeline.span("data", "data"):
        raise ValueError("broken")
    clock.sleep(1)
    assert _spent(timeline) == {"other": 1}


def test_phases_of_other_threads_are_not_the_time_of_the_main_thread() -> None:
    clock = ManualClock()
    timeline = Timeline(clock)

    def serve() -> None:
        with timeline.span("look-up", "communication"):
            clock.sleep(1)
        timeline.record("wait", "wait", 0, 1)

    thread = threading.Thread(target=serve)
    with timeline.step(1):
        thread.start()
        thread.join()
    assert _spent(timeline) == {"compute": 1}


def test_a_change_during_a_reading_counts_no_time_twice() -> None:
    """The thread that publishes copies the times just after the main thread has begun a span."""

    class Changed(dict[Activity, float]):
        def copy(self) -> dict[Activity, float]:
            timeline._switch("wait", clock())
            return super().copy()

    clock = ManualClock()
    timeline = Timeline(clock)
    with timeline.step(1):
        clock.sleep(10)
        timeline._seconds = Changed(timeline._seconds)
        assert timeline.seconds()["compute"] == 10


def test_a_span_costs_microseconds() -> None:
    """Ten spans of a step of 5 ms are 1 % of it at 5 µs; an idle machine measures 1 to 3 µs."""
    timeline = Timeline()
    times_s, limit_s = [float("inf")], 5e-6 * slowness()
    while min(times_s) >= limit_s and len(times_s) <= 20:  # Other tests share the cores' caches.
        begin = time.process_time()
        for _ in range(1000):
            with timeline.span("forward"):
                pass
        times_s.append((time.process_time() - begin) / 1000)
    assert min(times_s) < limit_s, times_s
