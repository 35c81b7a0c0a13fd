# pyright: standard
"""The times of a step."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from rolecall.kit.meter import Bubble, ComputeTime, GpuClock, Meter, all_passes
from rolecall.kit.pipelining import COSTS, Task
from rolecall.runtime.timeline import Timeline


class Ticks:
    """A clock with a settable time."""

    def __init__(self) -> None:
        self.time = 0.0
        self.completed = float("inf")

    def now(self) -> float:
        return self.time

    def between(self, begin: float, end: float) -> float:
        return end - begin

    def reached(self, moment: float) -> bool:
        return moment <= self.completed

    def pass_by(self, seconds: float) -> None:
        self.time += seconds


def test_a_step_is_work_and_waiting_and_what_lies_around_them() -> None:
    clock = Ticks()
    meter = Meter(clock)
    work = meter.timed(clock.pass_by)
    for _ in range(2):
        with meter.step():
            clock.pass_by(5.0)  # until the first micro-batch comes
            work(2.0)
            clock.pass_by(1.0)  # for a neighbor
            work(3.0)
            clock.pass_by(4.0)
        clock.pass_by(100.0)  # between steps
    assert meter.durations.tolist() == [15.0, 15.0]
    assert meter.compute_times.tolist() == [5.0, 5.0]
    assert meter.spans.tolist() == [6.0, 6.0]


def test_the_work_of_a_stage_is_measured_and_its_messages_are_not() -> None:
    class Stage:
        stage_index = 5

        def forward_one_chunk(self, micro_batch: int, seconds: float, *, full_backward: bool = True) -> str:
            clock.pass_by(seconds)
            return "activations"

        backward_one_chunk = backward_weight_one_chunk = get_fwd_send_ops = forward_one_chunk

    clock, stage = Ticks(), Stage()
    timeline = Timeline(clock.now)
    meter = Meter(clock, timeline)
    meter.watch(stage)
    with timeline.step(1), meter.step():
        clock.pass_by(5.0)
        assert stage.forward_one_chunk(0, 1.0) == "activations"
        stage.get_fwd_send_ops(0, 10.0)
        stage.backward_one_chunk(0, 2.0, full_backward=False)
        stage.backward_weight_one_chunk(0, 3.0)
        stage.backward_one_chunk(1, 4.0)
        clock.pass_by(6.0)
    assert meter.compute_times.tolist() == [10.0]
    spans = [(span.name, span.begin_s, span.seconds, span.micro_batch) for span in timeline.window(1 << 20).spans]
    assert spans == [
        ("wait", 0.0, 5.0, 0),
        ("F", 5.0, 1.0, 0),
        ("wait", 6.0, 10.0, 0),
        ("I", 16.0, 2.0, 0),
        ("W", 18.0, 3.0, 0),
        ("B", 21.0, 4.0, 1),
        ("wait", 25.0, 6.0, None),
    ]
    assert (timeline.seconds()["compute"], timeline.seconds()["wait"]) == (10.0, 21.0)


def test_the_passes_of_all_steps_but_the_first_are_added_up_with_the_loss_in_the_forward_passes() -> None:
    class Stage:
        stage_index = 5

        def forward_one_chunk(self, _: int, seconds: float, *, full_backward: bool = True) -> None:
            clock.pass_by(seconds)

        backward_one_chunk = backward_weight_one_chunk = forward_one_chunk

    clock, stage = Ticks(), Stage()
    meter = Meter(clock)
    meter.watch(stage)
    loss = meter.timed(clock.pass_by, "loss")
    for factor in (100.0, 1.0, 3.0):
        with meter.step():
            stage.forward_one_chunk(0, factor)
            loss(factor / 2)
            stage.backward_one_chunk(0, 2 * factor)
            stage.backward_one_chunk(1, 4 * factor, full_backward=False)
            stage.backward_weight_one_chunk(1, 5 * factor)
    assert not meter.passes.has([[Task(4, "F", 0)]])
    assert meter.passes.has([[Task(5, kind, 9) for kind in COSTS]])
    assert {str(task): meter.passes.cost(task) for task in (Task(5, kind, 7) for kind in COSTS)} == {
        "5F7": 3.0,
        "5I7": 8.0,
        "5W7": 10.0,
        "5B7": 4.0,
    }


def test_the_passes_of_all_workers_have_the_mean_of_the_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums over the workers stand in for those that the collective makes."""
    meters = [Meter(Ticks()) for _ in range(3)]
    for meter, stage, seconds in zip(meters, (0, 1, 1), (1.0, 4.0, 8.0), strict=True):
        meter.passes.add(stage, "F", seconds)
    meters[2].passes.add(1, "F", 3.0)
    tables: list[torch.Tensor] = []
    grid = SimpleNamespace(device=torch.device("cpu"))
    monkeypatch.setattr(dist, "all_reduce", tables.append)
    for meter in meters:
        all_passes(meter, grid, 2)  # type: ignore[arg-type] - the rest of the grid is not used
    monkeypatch.setattr(dist, "all_reduce", lambda table: table.copy_(sum(tables)))
    found = all_passes(meters[0], grid, 2)  # type: ignore[arg-type]
    assert [found.cost(Task(stage, "F", 0)) for stage in range(2)] == [1.0, 5.0]
    assert not found.has([[Task(0, "B", 0)]])


def test_computations_count_once_and_only_when_their_device_has_completed_them() -> None:
    clock = Ticks()
    total = ComputeTime(clock)
    for seconds in (1.0, 2.0, 4.0):
        with total.computation():
            clock.pass_by(seconds)
        clock.pass_by(100.0)  # between computations
    clock.completed = 103.0  # the end of the second one
    assert total.take() == 3.0
    assert total.take() == 0.0
    clock.completed = 1000.0
    assert total.take() == 4.0


def test_a_bubble_is_that_of_the_steps_since_the_last_reading_without_the_very_first_step() -> None:
    bubble = Bubble()
    bubble.add(100.0, [1.0, 1.0])
    assert bubble.take() is None
    bubble.add(10.0, [4.0, 8.0])
    bubble.add(10.0, [10.0, 10.0])
    assert bubble.take() == pytest.approx(0.2)
    bubble.add(10.0, [6.0, 6.0])
    assert bubble.take() == pytest.approx(0.4)
    bubble.add(10.0, [11.0, 11.0])  # with work of the step before
    assert bubble.take() == 0.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: moments are marks in its stream")
def test_a_gpu_is_measured_by_events_in_its_stream() -> None:
    meter = Meter(GpuClock())
    matrix = torch.randn(4096, 4096, device="cuda")
    with meter.step():
        meter.timed(lambda: [matrix @ matrix for _ in range(20)])()
    assert 0 < meter.compute_times[0] <= meter.durations[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: its computations outlast their launch")
def test_the_sum_of_computations_does_not_wait_for_a_gpu() -> None:
    total = ComputeTime(GpuClock())
    with total.computation():
        torch.cuda._sleep(1_000_000_000)
    assert total.take() == 0.0
    torch.cuda.synchronize()
    assert total.take() > 0.1
