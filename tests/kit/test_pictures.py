"""Pictures of schedules and timelines: valid XML, every task once, and bounded."""

from datetime import UTC, datetime
from xml.etree import ElementTree as ET

from rolecall.kit.orders import planned_order
from rolecall.kit.pictures import schedule_svg, schedule_text, timeline_svg
from rolecall.kit.pipelining import timed
from rolecall.spec.inspection import TimelineDocument, WorkerTimeline
from rolecall.spec.role import Role
from rolecall.spec.timeline import Span, Step

_SVG = "{http://www.w3.org/2000/svg}"


def bars(svg: str) -> list[str]:
    return [group.findtext(f"{_SVG}title", "") for group in ET.fromstring(svg).iter(f"{_SVG}g")]


def test_every_task_is_drawn_once() -> None:
    order = planned_order("ZBVZeroBubble", 4, 8, 2)
    drawn = [hint.split()[0] for hint in bars(schedule_svg(timed(order), "a <title> & more", ""))]
    assert sorted(drawn) == sorted(str(task) for tasks in order for task in tasks)


def test_the_text_is_the_figure_of_the_paper() -> None:
    assert schedule_text(timed(planned_order("1F1B", 2, 2, 1)), 80) == [
        "rank 0   F0 F1 .  .  B0 B0 .  B1 B1",
        "rank 1   .  F0 B0 B0 F1 B1 B1",
    ]
    assert all(len(line) <= 20 for line in schedule_text(timed(planned_order("GPipe", 4, 8, 1)), 20))


def test_a_timeline_shows_spans_of_each_thread_and_few_of_too_many() -> None:
    many = tuple(Span("look-up", "communication", n * 1e-5, 1e-9, 1, None, None, "main") for n in range(1000))
    spans = (
        Span("F", "compute", 0.0, 0.5, 1, 0, 3, "main"),
        Span("act", "wait", 0.1, 0.2, 1, None, None, "t-1"),
        *many,
    )
    worker = WorkerTimeline(
        rank=0, role=Role.STAGE, role_rank=0, node="n", clock_uncertainty_s=0.0, cut=False,
        steps=(Step(1, 0.0, 1.0),), spans=spans,
    )  # fmt: skip
    document = TimelineDocument(job="j", attempt=1, live=True, at=datetime.now(UTC), workers=(worker,), silent=())
    hints = bars(timeline_svg(document))
    assert [hint.split(":")[0] for hint in hints] == ["F3, step 1", "act, step 1"]
