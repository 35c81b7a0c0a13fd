"""Pictures of schedules and timelines: valid XML, every task once, and bounded."""

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from tests.cpu_time import is_within

from rolecall.kit.orders import planned_order
from rolecall.kit.pictures import schedule_svg, schedule_text, timeline_svg
from rolecall.kit.pipelining import timed
from rolecall.kit.schedules import ScheduleName
from rolecall.spec.inspection import TimelineDocument, WorkerTimeline
from rolecall.spec.role import Role
from rolecall.spec.timeline import MAX_SPANS, Span, Step

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


def test_the_text_fits_a_narrow_terminal() -> None:
    planned = timed(planned_order("1F1B", 4, 8, 1))
    wide = schedule_text(planned, 107)
    assert wide[0].endswith(" .  B6 B6 .  B7 B7")
    packed = schedule_text(planned, 106)
    assert packed == schedule_text(planned, 75)
    assert packed[0] == "rank 0   F0F1F2F3. . . . . . B0B0F4B1B1F5B2B2F6B3B3F7B4B4. B5B5. B6B6. B7B7"
    split = schedule_text(planned, 60)
    assert [line for line in split if not line.startswith("rank ")] == ["", "time 0 to 17", "", "time 17 to 33"]
    assert split[2:4] == [
        "rank 0   F0 F1 F2 F3 .  .  .  .  .  .  B0 B0 F4 B1 B1 F5 B2",
        "rank 1   .  F0 F1 F2 .  .  .  .  B0 B0 F3 B1 B1 F4 B2 B2 F5",
    ]
    assert split[8:10] == [
        "rank 0   B2 F6 B3 B3 F7 B4 B4 .  B5 B5 .  B6 B6 .  B7 B7",
        "rank 1   B3 B3 F6 B4 B4 F7 B5 B5 .  B6 B6 .  B7 B7",
    ]


def test_long_names_have_blanks_between_them() -> None:
    planned = timed(planned_order("Interleaved1F1B", 4, 12, 2))
    text = schedule_text(planned, 10 + 4 * int(max(one.end for tasks in planned for one in tasks)))
    assert "time" in text[1], "the rows would fit without blanks"
    assert all(re.fullmatch(r"rank \d   ((\.|\d[FB]\d+) *)*", row) for row in text if row.startswith("rank"))
    assert not any(re.search(r"\d[FB]\d+[FB]", row) for row in text)


@pytest.mark.parametrize("name", ["GPipe", "Interleaved1F1B"])
@pytest.mark.parametrize("width", [5, 20, 60, 80])
def test_the_text_of_a_narrow_terminal_has_every_cell(name: ScheduleName, width: int) -> None:
    planned = timed(planned_order(name, 4, 12, 2 if name == "Interleaved1F1B" else 1))
    text, whole = schedule_text(planned, width), schedule_text(planned, 10_000)
    assert all(len(line) <= max(width, 13) for line in text)
    for rank, line in enumerate(whole):
        own = "".join(row[9:].replace(" ", "") for row in text if row.startswith(f"rank {rank} "))
        assert own == line[9:].replace(" ", "")


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
    assert [hint.split(":")[0] for hint in hints] == ["F3, step 1", "act, step 1, t-1"]


def labels(svg: str, name: str) -> list[str]:
    return [text.text or "" for text in ET.fromstring(svg).iter(f"{_SVG}text") if text.get("class") == name]


def test_a_timeline_with_thousands_of_threads_is_drawn_soon() -> None:
    spans = tuple(Span("look-up", "compute", n / 1024, 0.5, 1, None, None, f"t{n % 3000}") for n in range(6000))
    worker: dict[str, Any] = {
        "role": Role.TRAINER,
        "node": "n",
        "clock_uncertainty_s": 0.0,
        "cut": False,
        "steps": (),
        "spans": spans,
    }
    workers = tuple(WorkerTimeline.model_construct(rank=rank, role_rank=rank, **worker) for rank in range(32))
    at = datetime(2026, 1, 1, tzinfo=UTC)
    document = TimelineDocument.model_construct(job="toy-1", attempt=1, live=True, at=at, workers=workers, silent=())
    begin = time.process_time()
    svg = timeline_svg(document)
    assert svg.count("<rect") > 256
    assert f"; without {32 * 512 - 256} rows after the first 256" in svg
    assert is_within(time.process_time() - begin, 2)


def test_a_picture_without_all_bars_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolecall.kit.pictures._MAX_BARS", 20)
    svg = schedule_svg(timed(planned_order("1F1B", 4, 8, 1)), "a title", "a note.")
    assert len(bars(svg)) == 20
    assert "a note; without 44 bars after the first 20" in labels(svg, "faint")


def test_a_timeline_of_nested_phases_is_drawn_soon() -> None:
    spans = tuple(Span("look-up", "compute", n * 1e-4, 2 - n * 2e-4, 1, None, None, "main") for n in range(MAX_SPANS))
    worker = WorkerTimeline(
        rank=0, role=Role.TRAINER, role_rank=0, node="n", clock_uncertainty_s=0.0, cut=False, steps=(), spans=spans
    )
    document = TimelineDocument(job="j", attempt=1, live=True, at=datetime.now(UTC), workers=(worker,), silent=())
    begin = time.process_time()
    assert len(bars(timeline_svg(document))) == MAX_SPANS
    assert is_within(time.process_time() - begin, 1)


@pytest.mark.parametrize("seconds", [5e-324, 1e-310])
def test_a_timeline_of_hardly_any_time_is_drawn(seconds: float) -> None:
    spans = (Span("F", "compute", 0.0, seconds, 1, 0, 3, "main"),)
    worker = WorkerTimeline(
        rank=0, role=Role.STAGE, role_rank=0, node="n", clock_uncertainty_s=0.0, cut=False, steps=(), spans=spans
    )
    document = TimelineDocument(job="j", attempt=1, live=True, at=datetime.now(UTC), workers=(worker,), silent=())
    assert labels(timeline_svg(document), "faint")[1:] == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0", "seconds"]


def test_the_axis_has_round_values_where_they_are() -> None:
    spans = (Span("F", "compute", 0.013, 0.101, 1, 0, 3, "main"),)
    worker = WorkerTimeline(
        rank=0, role=Role.STAGE, role_rank=0, node="n", clock_uncertainty_s=0.0, cut=False,
        steps=(Step(1, 0.013, 0.101),), spans=spans,
    )  # fmt: skip
    document = TimelineDocument(job="j", attempt=1, live=True, at=datetime.now(UTC), workers=(worker,), silent=())
    assert labels(timeline_svg(document), "faint")[1:] == ["0.02", "0.04", "0.06", "0.08", "0.10", "seconds"]
    ticks = labels(schedule_svg(timed(planned_order("1F1B", 4, 8, 1)), "", ""), "faint")[1:-1]
    assert ticks == ["0", "5", "10", "15", "20", "25", "30"]


def test_threads_are_in_the_order_of_their_numbers() -> None:
    names = ["thread-10", "thread-9", "a", "main", "thread-1"]
    spans = tuple(Span("apply", "compute", 0.0, 1.0, 1, None, None, name) for name in names)
    worker = WorkerTimeline(
        rank=0, role=Role.STAGE, role_rank=0, node="n", clock_uncertainty_s=0.0, cut=False,
        steps=(Step(1, 0.0, 1.0),), spans=spans,
    )  # fmt: skip
    document = TimelineDocument(job="j", attempt=1, live=True, at=datetime.now(UTC), workers=(worker,), silent=())
    rows = [text.text for text in ET.fromstring(timeline_svg(document)).iter(f"{_SVG}text")]
    order = ["stage-0", "stage-0 a", "stage-0 thread-1", "stage-0 thread-9", "stage-0 thread-10"]
    assert [row for row in rows if row in order] == order


def test_threads_share_rows_while_others_are_idle() -> None:
    """No bar of a row overlaps one of another thread, and every span is drawn once."""
    spans = [
        Span(f"{name}{call}", "compute", 2.0 * call + begin, seconds, 1, None, None, f"thread-{call % 4}")
        for call in range(12)
        # Two calls at a time at most; each has a phase within it.
        for name, begin, seconds in (("apply", 0.0, 3.0), ("act", 0.5, 1.0))
    ]
    spans.append(Span("wait", "wait", 0.0, 20.0, 1, None, None, "main"))
    svg = timeline_svg(document_of(spans))
    names = [text.text for text in ET.fromstring(svg).iter(f"{_SVG}text") if (text.text or "").startswith("observer")]
    assert names == ["observer-0", "observer-0 threads 1", "observer-0 threads 2"]
    assert sorted(hint.split(":")[0] for hint in bars(svg)) == sorted(
        f"{span.name}, step 1" + (f", {span.thread}" if span.thread != "main" else "") for span in spans
    )
    ends: dict[str, tuple[float, str]] = {}
    """By row, the end of the last bar and its thread."""
    for group in ET.fromstring(svg).iter(f"{_SVG}g"):
        thread = group.findtext(f"{_SVG}title", "").split(":")[0].rpartition(", ")[2]
        (x, y), width = (float(group[1].get(name, "")) for name in ("x", "y")), float(group[1].get("width", ""))
        row = str(y // 32)
        if row in ends and x < ends[row][0] - 0.02:
            assert ends[row][1] == thread
        ends[row] = max(ends.get(row, (0.0, "")), (x + width, thread))
    assert len(ends) == 3


def test_a_label_is_where_no_inner_bar_covers_it() -> None:
    spans = (
        Span("forward", "compute", 0.0, 1.0, 1, None, None, "main"),
        Span("look-up", "communication", 0.4, 0.2, 1, None, None, "main"),
        Span("act", "wait", 0.9, 0.1, 1, None, None, "main"),
        Span("hidden", "compute", 1.0, 0.05, 1, None, None, "main"),
        Span("inside", "wait", 1.0, 0.04, 1, None, None, "main"),
    )
    worker = WorkerTimeline(
        rank=0, role=Role.STAGE, role_rank=0, node="n", clock_uncertainty_s=0.0, cut=False,
        steps=(Step(1, 0.0, 1.05),), spans=spans,
    )  # fmt: skip
    document = TimelineDocument(job="j", attempt=1, live=True, at=datetime.now(UTC), workers=(worker,), silent=())
    found = [text for text in ET.fromstring(timeline_svg(document)).iter(f"{_SVG}text") if text.get("class")]
    texts = {text.text: float(text.get("x", "0")) for text in found}
    assert texts["forward"] == pytest.approx(190 + 1060 * 0.2 / 1.05, abs=0.01)
    assert "hidden" not in texts


def document_of(spans: Sequence[Span], *, live: bool = True) -> TimelineDocument:
    worker = WorkerTimeline(
        rank=0, role=Role.OBSERVER, role_rank=0, node="n", clock_uncertainty_s=0.0, cut=False, steps=(),
        spans=tuple(spans),
    )  # fmt: skip
    return TimelineDocument(job="j", attempt=1, live=live, at=datetime.now(UTC), workers=(worker,), silent=())


def classes(svg: str) -> dict[str, str]:
    """The class of each bar by the first word of its hint."""
    groups = ET.fromstring(svg).iter(f"{_SVG}g")
    return {re.split(r"[ :,]", group[0].text or "")[0]: group[1].get("class", "") for group in groups}


def legend(svg: str) -> list[str]:
    """The texts of the legend, which have neither a class nor an anchor."""
    texts = list(ET.fromstring(svg).iter(f"{_SVG}text"))
    return [text.text or "" for text in texts if not {"class", "text-anchor", "font-size"} & set(text.keys())]


def test_phases_of_one_category_have_colors_of_their_own_and_a_legend() -> None:
    names = ["act", "step", "act", "step"]
    spans = [Span(name, "compute", float(n), 1.0, 1, None, None, "main") for n, name in enumerate(names)]
    waits = [Span(name, "wait", 9.0 + n, 1.0, 1, None, None, "main") for n, name in enumerate(["request", "agree"])]
    svg = timeline_svg(document_of([*spans, *waits]))
    found = classes(svg)
    assert found["act"] != found["step"]
    assert found["request"] == found["agree"] == "wait-0"
    assert legend(svg) == ["compute:", "act", "step", "wait"]
    assert legend(timeline_svg(document_of(spans[:1]))) == ["compute"]


def test_forward_and_backward_have_the_same_colors_as_phases_and_as_passes() -> None:
    names = ["forward", "backward", "apply"]
    spans = [Span(name, "compute", float(n), 1.0, 1, None, None, "main") for n, name in enumerate(names)]
    svg = timeline_svg(document_of(spans))
    assert classes(svg) == {"forward": "F-0", "backward": "B-0", "apply": "compute-0"}
    assert legend(svg) == ["forward", "backward", "compute"]
    waiting = timeline_svg(document_of([Span("forward", "wait", 0.0, 1.0, 1, None, None, "main")]))
    assert legend(waiting) == ["wait"]


def test_the_longest_of_many_phases_have_colors_of_their_own() -> None:
    spans = [Span(f"p{n}", "compute", n * 20.0, 10.0 - n, 1, None, None, "main") for n in range(6)]
    svg = timeline_svg(document_of(spans))
    assert list(classes(svg).values()) == [f"compute-{place}" for place in (0, 1, 2, 3, 3, 3)]
    assert legend(svg) == ["compute:", "p0", "p1", "p2", "others"]


@pytest.mark.parametrize(
    ("name", "virtual", "meanings"),
    [
        ("Interleaved1F1B", 2, ["stages 0–3", "stages 4–7"]),
        ("ZBVZeroBubble", 2, ["stages 0–3", "stages 4–7"]),
        ("LoopedBFS", 4, ["stages 0–3, 12–15", "stages 4–7", "stages 8–11"]),
    ],
)
def test_the_stages_of_a_rank_have_different_colors(name: ScheduleName, virtual: int, meanings: list[str]) -> None:
    svg = schedule_svg(timed(planned_order(name, 4, 4, virtual)), "a", "b")
    assert classes(svg)["0F0"] != classes(svg)["4F0"]
    assert legend(svg)[-len(meanings) :] == meanings
    if virtual == 2:
        assert {"0F0", "4F0"} <= {text.text for text in ET.fromstring(svg).iter(f"{_SVG}text")}


def test_a_rank_with_one_stage_needs_no_number_of_it() -> None:
    svg = schedule_svg(timed(planned_order("1F1B", 4, 8, 1)), "a", "b")
    assert legend(svg) == ["forward", "backward"]
    assert set(classes(svg).values()) == {"F-0", "B-0"}
    assert "F0" in {text.text for text in ET.fromstring(svg).iter(f"{_SVG}text")}


@pytest.mark.parametrize(("live", "note"), [(True, "no step is recorded yet"), (False, "no step was recorded")])
def test_only_workers_that_run_can_record_steps_later(*, live: bool, note: str) -> None:
    assert labels(timeline_svg(document_of([], live=live)), "faint")[0] == note
