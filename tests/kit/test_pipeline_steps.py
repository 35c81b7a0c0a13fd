"""A measured step of a pipeline and its theory, found in what workers record."""

from collections.abc import Sequence
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

import pytest

from rolecall.kit.orders import planned_order
from rolecall.kit.pictures import pipeline_svg
from rolecall.kit.pipeline_steps import newest_step
from rolecall.kit.pipelining import COSTS, Task, TimedTask, bubble, timed
from rolecall.spec.inspection import TimelineDocument, WorkerTimeline
from rolecall.spec.role import Role
from rolecall.spec.timeline import Span, Step

_STEP_S = 100.0
PLANNED = timed(planned_order("ZBVZeroBubble", 2, 4, 2))


def recorded(planned: Sequence[Sequence[TimedTask]], steps: int = 2, *, replicas: int = 1) -> TimelineDocument:
    """Workers that run the plan exactly, a second for each forward pass."""
    workers = [
        WorkerTimeline(
            rank=rank, role=Role.STAGE, role_rank=rank, node="n", clock_uncertainty_s=0.0, cut=False,
            steps=tuple(Step(step, step * _STEP_S, _STEP_S) for step in range(steps)),
            spans=tuple(_span(one, step) for step in range(steps) for one in row),
        )
        for rank, row in enumerate(list(planned) * replicas)
    ]  # fmt: skip
    return TimelineDocument(job="j", attempt=1, live=True, at=datetime.now(UTC), workers=tuple(workers), silent=())


def _span(one: TimedTask, step: int) -> Span:
    stage, kind, micro_batch = one.task
    begin_s = step * _STEP_S + one.begin
    return Span(kind, "compute", begin_s, one.end - one.begin, step, stage, micro_batch, "main")


def change(document: TimelineDocument, rank: int, spans: Sequence[Span]) -> TimelineDocument:
    workers = list(document.workers)
    workers[rank] = workers[rank].model_copy(update={"spans": tuple(spans)})
    return document.model_copy(update={"workers": tuple(workers)})


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_pipeline_that_runs_like_its_plan_has_the_bubble_of_theory(replicas: int) -> None:
    found = newest_step(recorded(PLANNED, replicas=replicas))
    assert found
    assert (found.number, found.planned) == (1, PLANNED)
    assert [worker.role_rank for worker in found.workers] == [0, 1]
    assert found.bubble_theory == pytest.approx(bubble([[one.task for one in row] for row in PLANNED]))
    assert found.bubble_measured == pytest.approx(found.bubble_theory)
    assert found.bubble_simulated == pytest.approx(found.bubble_theory)


def unequal_cost(task: Task) -> float:
    """Of two stages, in seconds."""
    return COSTS[task.kind] * (1.0 if task.stage == 0 else 0.6)


def test_unequal_stages_without_communication_have_the_expected_bubble() -> None:
    order = planned_order("1F1B", 2, 4, 1)
    document = recorded(timed(order, unequal_cost))
    loss = [span._replace(name="loss", seconds=0.1) for span in document.workers[1].spans if span.name == "F"]
    forward = [
        span._replace(begin_s=span.begin_s + 0.1, seconds=0.5) if span.name == "F" else span
        for span in document.workers[1].spans
    ]
    found = newest_step(change(document, 1, sorted([*loss, *forward], key=lambda span: span.begin_s)))
    assert found
    assert found.bubble_theory == pytest.approx(1 / 5)
    assert found.bubble_measured == pytest.approx(bubble(order, unequal_cost))
    assert found.bubble_simulated == pytest.approx(found.bubble_measured)
    assert found.bubble_simulated > found.bubble_theory + 0.05


def test_an_optimizer_that_steps_before_other_ranks_are_done_is_no_pass() -> None:
    document = recorded(timed(planned_order("1F1B", 2, 4, 1)), 1)
    spans = document.workers[1].spans
    end = spans[-1].begin_s + spans[-1].seconds
    optimizer = Span("optimizer", "compute", end, 1.0, 0, 1, None, "main")
    found, before = newest_step(change(document, 1, [*spans, optimizer])), newest_step(document)
    assert found
    assert before
    assert (found.bubble_measured, found.bubble_simulated) == (before.bubble_measured, before.bubble_simulated)


def test_passes_without_any_duration_or_of_another_category_break_nothing() -> None:
    """A job can report any times."""
    document = recorded(timed(planned_order("1F1B", 2, 4, 1), lambda _: 0.0), 1)
    found = newest_step(document)
    assert found
    assert (found.bubble_measured, found.bubble_simulated) == (0.0, 0.0)
    waits = [span._replace(category="wait") for span in document.workers[1].spans]
    assert newest_step(change(document, 1, waits)) is None


def test_a_wait_adds_to_the_measured_bubble_and_not_to_that_of_theory() -> None:
    document = recorded(PLANNED, 1)
    late = [span._replace(begin_s=span.begin_s + 5) for span in document.workers[1].spans]
    found, before = newest_step(change(document, 1, late)), newest_step(document)
    assert found
    assert before
    assert found.bubble_measured > before.bubble_measured
    assert (found.bubble_theory, found.bubble_simulated) == (before.bubble_theory, before.bubble_simulated)


def test_a_step_with_missing_or_repeated_tasks_is_passed_over() -> None:
    document = recorded(PLANNED)
    spans = document.workers[0].spans
    for broken in (spans[:-1], (*spans, spans[-1])):
        shown = newest_step(change(document, 0, broken))
        assert shown
        assert shown.number == 0
    assert newest_step(change(document, 0, [span for span in spans if span.name != "F"])) is None
    assert newest_step(recorded(PLANNED[:1])) is None
    assert newest_step(recorded([])) is None


def test_the_picture_has_every_task_measured_and_in_theory() -> None:
    found = newest_step(recorded(PLANNED))
    assert found
    svg = ET.fromstring(pipeline_svg(found, "a <title>"))
    names = [text for group in svg.iter("{http://www.w3.org/2000/svg}g") if (text := group[0].text)]
    tasks = sorted(str(one.task) for row in PLANNED for one in row)
    assert sorted(name.split(",")[0] for name in names if ", step 1:" in name) == tasks
    assert sorted(name.split()[0] for name in names if ", step" not in name) == tasks
    assert "Theory: bubble" in (svg.findtext("{http://www.w3.org/2000/svg}desc") or "")


def test_passes_that_follow_each_other_have_bars_of_the_same_height_however_their_times_are_rounded() -> None:
    found = newest_step(recorded(timed(planned_order("1F1B", 2, 8, 1), unequal_cost)))
    assert found
    svg = ET.fromstring(pipeline_svg(found, ""))
    groups = [group for group in svg.iter("{http://www.w3.org/2000/svg}g") if ", step 1:" in (group[0].text or "")]
    assert len(groups) == 32
    assert len({group[1].get("height") for group in groups}) == 1
