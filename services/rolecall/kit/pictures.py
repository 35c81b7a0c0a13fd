"""Pictures of pipelines and of gangs over time: planned schedules and measured timelines. Pure: values in, text out.

The colors follow the reader's light or dark mode.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from html import escape

from rolecall.kit.coloring import PALE, PASSES, STYLE, Coloring, LegendEntry
from rolecall.kit.pipeline_steps import PipelineStep
from rolecall.kit.pipelining import TimedTask, makespan
from rolecall.spec.inspection import TimelineDocument
from rolecall.spec.ticks import nice_step
from rolecall.spec.timeline import Span
from rolecall.spec.visible import cut

_LEFT, _WIDTH, _ROW, _GAP, _BOTTOM = 190, 1060, 26, 6, 40
_LEGEND_ROW, _LEGEND_CHARS, _LEGEND_GAP = 18, 40, 22
_HEADING = 24
_CHAR = 6.2
"""The average width of a character in 11 pixels."""
_LABELS = (11, 10, 9, 8)
"""The sizes of labels: the largest that fits."""
_LEAST_WIDTH = 0.15
"""Narrower bars are left out, because nobody sees them."""
_MAX_BARS, _MAX_ROWS = 40_000, 256
_LEAST_LENGTH = 1e-9
"""The axis of a shorter panel, as of an empty one, has the length 1: a job can report any times."""
_TICKS = 8
_ROUNDING_S = 1e-6
"""A span that begins so shortly before the end of another one follows it: sums of times are rounded."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A period in a row; `kind` is a class of bars. `depth` bars lie around it."""

    row: int
    begin: float
    end: float
    label: str
    kind: str
    hint: str
    depth: int = 0


VisibleBar = tuple[Bar, tuple[float, float]]
"""A bar, and its longest part that no bar inside it covers."""


@dataclass(frozen=True, slots=True)
class Panel:
    """Rows of bars above an axis; `bars` has the indices of `rows`."""

    rows: Sequence[str]
    bars: Sequence[Bar]
    unit: str
    heading: str = ""


def schedule_svg(planned: Sequence[Sequence[TimedTask]], title: str, note: str) -> str:
    """A planned schedule, one row for each rank. The unit is the time of a forward pass."""
    coloring = Coloring.of([one.task.stage for one in tasks] for tasks in planned)
    return _draw(title, note, [_plan(planned, coloring)], coloring)


def pipeline_svg(step: PipelineStep, title: str) -> str:
    """A measured step of a pipeline above the same tasks in theory, one row for each rank."""
    begin = min(span.begin_s for row in step.spans for span in row)
    moved = [[span._replace(begin_s=span.begin_s - begin) for span in row] for row in step.spans]
    length = max(span.begin_s + span.seconds for row in moved for span in row)
    passes = makespan([[one.task for one in row] for row in step.planned])
    measured = f"Measured: bubble {step.bubble_measured:.1%}, duration {length:.4g} seconds"
    simulated = f"Simulated with the mean pass times and instant communication: bubble {step.bubble_simulated:.1%}"
    theory = f"Theory: bubble {step.bubble_theory:.1%}, duration {passes:g} forward passes"
    rows = [f"{worker.role}-{worker.role_rank}" for worker in step.workers]
    coloring = Coloring.of(
        ([one.task.stage for one in tasks] for tasks in step.planned), (span for row in moved for span in row)
    )
    bars = [bar for row, spans in enumerate(moved) for bar in _span_bars(spans, row, coloring)]
    return _draw(
        title,
        f"{measured}. {simulated}. {theory}.",
        [Panel(rows, bars, "seconds", f"{measured}. {simulated}"), _plan(step.planned, coloring, theory, rows)],
        coloring,
    )


def _plan(
    planned: Sequence[Sequence[TimedTask]], coloring: Coloring, heading: str = "", rows: Sequence[str] = ()
) -> Panel:
    bars = list[Bar]()
    for rank, tasks in enumerate(planned):
        for one in tasks:
            stage, kind, micro_batch = one.task
            label, hint = coloring.label(kind, stage, micro_batch), f"{one.task} at {one.begin:g} to {one.end:g}"
            bars.append(Bar(rank, one.begin, one.end, label, coloring.of_pass(kind, stage), hint))
    return Panel(rows or [f"rank {rank}" for rank in range(len(planned))], bars, "forward passes", heading)


def _thread_order(name: str) -> list[str | int]:
    """A key that puts thread 10 after thread 9."""
    return [int(part) if place % 2 else part for place, part in enumerate(re.split(r"(\d+)", name))]


def _rows_of(worker: str, spans: Iterable[Span]) -> list[tuple[str, list[Span]]]:
    """The rows of a worker with their names: one for its main thread, and as few as possible for its other threads.

    A server has a thread for each call that it can serve at once, most of which are idle most of the time.
    """
    threads = defaultdict[str, list[Span]](list)
    for span in spans:
        threads[span.thread].append(span)
    rows = [(worker, threads.pop("main"))] if "main" in threads else []
    others = sorted(threads, key=_thread_order)
    shared = _shared_rows(threads[thread] for thread in others)
    if len(shared) < len(others):
        name = f"{worker} threads"
        return rows + (
            [(name, shared[0])] if len(shared) == 1 else [(f"{name} {n}", row) for n, row in enumerate(shared, 1)]
        )
    return rows + [(f"{worker} {thread}", threads[thread]) for thread in others]


def _shared_rows(threads: Iterable[Iterable[Span]]) -> list[list[Span]]:
    """The spans of all threads in as few rows as possible: each is in the first row that is free at its begin.

    The spans of a thread that overlap, because they are nested, stay together.
    """
    groups = sorted((group for spans in threads for group in _overlapping(spans)), key=lambda group: group[0].begin_s)
    rows, free = list[list[Span]](), list[int]()
    in_use = list[tuple[float, int]]()
    """The rows, by the times at which they are free again."""
    for group in groups:
        while in_use and in_use[0][0] <= group[0].begin_s + _ROUNDING_S:
            heappush(free, heappop(in_use)[1])
        row = heappop(free) if free else len(rows)
        if row == len(rows):
            rows.append([])
        rows[row] += group
        heappush(in_use, (max(map(_end, group)), row))
    return rows


def _overlapping(spans: Iterable[Span]) -> list[list[Span]]:
    """The groups of spans between which nothing happens, in the order of time."""
    groups, end = list[list[Span]](), -math.inf
    for span in sorted(spans, key=lambda one: one.begin_s):
        if span.begin_s + _ROUNDING_S >= end:
            groups.append([])
        groups[-1].append(span)
        end = max(end, _end(span))
    return groups


def _end(span: Span) -> float:
    return span.begin_s + span.seconds


def timeline_svg(document: TimelineDocument) -> str:
    """A measured timeline, one row for the main thread of each worker, and rows that its other threads share.

    Shows the time of the steps, if there are any: other phases can begin long before.
    """
    steps = [step for worker in document.workers for step in worker.steps]
    begin = min((step.begin_s for step in steps), default=-math.inf)
    end = max((step.begin_s + step.seconds for step in steps), default=math.inf)
    shown = [
        [span for span in worker.spans if span.begin_s < end and _end(span) > begin] for worker in document.workers
    ]
    coloring = Coloring.of(
        ([span.stage for span in spans if span.name in PASSES and span.stage is not None] for spans in shown),
        (span for spans in shown for span in spans),
    )
    named = [
        row
        for worker, spans in zip(document.workers, shown, strict=True)
        for row in _rows_of(f"{worker.role}-{worker.role_rank}", spans)
    ]
    bars = [
        replace(bar, begin=max(bar.begin, begin), end=min(bar.end, end))
        for place, (_, spans) in enumerate(named[:_MAX_ROWS])
        for bar in _span_bars(spans, place, coloring)
    ]
    note = f"attempt {document.attempt}, from {document.at:%Y-%m-%d %H:%M:%S} UTC"
    if not bars:
        note = "no step is recorded yet" if document.live else "no step was recorded"
    if document.silent:
        note += f"; without {len(document.silent)} workers that did not answer"
    if len(named) > _MAX_ROWS:
        note += f"; without {len(named) - _MAX_ROWS} rows after the first {_MAX_ROWS}"
    return _draw(document.job, note, [Panel([name for name, _ in named[:_MAX_ROWS]], bars, "seconds")], coloring)


_PACKED_CHARS = 2
"""The longest labels that can be read without blanks between them, such as `F0B1`."""


def schedule_text(planned: Sequence[Sequence[TimedTask]], width: int) -> list[str]:
    """A planned schedule as text of at most `width` characters, one line for each rank.

    A cell is the time of a forward pass: `F3` is the forward pass of micro-batch 3, `.` is idle time. With virtual
    stages, the stage precedes it. Cells have a blank between them, except if all lines fit only without it and labels
    are short. Otherwise, the lines are split into parts of about the same length, those of the same time below a
    heading with that time.
    """
    coloring = Coloring.of([one.task.stage for one in tasks] for tasks in planned)
    names = [
        [coloring.label(one.task.kind, one.task.stage, one.task.micro_batch) for one in tasks] for tasks in planned
    ]
    rows: list[list[str]] = []
    for tasks, own in zip(planned, names, strict=True):
        cells: list[str] = []
        for one, name in zip(tasks, own, strict=True):
            cells += ["."] * (int(one.begin) - len(cells)) + [name] * int(one.end - one.begin)
        rows.append(cells)
    length = max(map(len, rows), default=0)
    longest = max((len(name) for row in names for name in row), default=1)
    room = width - len(_row_name(0))
    if length * (longest + 1) - 1 <= room:  # No blank follows the last cell.
        return _text_rows(rows, longest + 1)
    if length * longest <= room and longest <= _PACKED_CHARS:
        return _text_rows(rows, longest)
    parts = math.ceil(length / max(1, (room + 1) // (longest + 1)))
    ticks = math.ceil(length / parts)
    lines: list[str] = []
    for begin in range(0, length, ticks):
        end = min(begin + ticks, length)
        lines += ["", f"time {begin} to {end}", *_text_rows([cells[begin:end] for cells in rows], longest + 1)]
    return lines


def _row_name(rank: int) -> str:
    return f"rank {rank:<3} "


def _text_rows(rows: Iterable[Sequence[str]], cell: int) -> list[str]:
    """The ranks' cells, each `cell` characters wide."""
    return [(_row_name(rank) + "".join(name.ljust(cell) for name in cells)).rstrip() for rank, cells in enumerate(rows)]


def _span_bars(spans: Iterable[Span], row: int, coloring: Coloring) -> Iterator[Bar]:
    """The spans of a row. A span within others is drawn inside them."""
    around: list[Span] = []
    for span in sorted(spans, key=lambda one: (one.begin_s, -one.seconds)):
        while around and _end(around[-1]) <= span.begin_s + _ROUNDING_S:
            around.pop()
        label = coloring.label(span.name, span.stage, span.micro_batch)
        where = "" if span.step is None else f", step {span.step}"
        where += "" if span.thread == "main" else f", {span.thread}"
        hint = f"{label}{where}: {span.seconds * 1e3:.3f} ms"
        yield Bar(row, span.begin_s, _end(span), label, coloring.of_span(span), hint, len(around))
        around.append(span)


def _draw(title: str, note: str, panels: Sequence[Panel], coloring: Coloring) -> str:
    width = _LEFT + _WIDTH + 30
    visible = [_visible(panel) for panel in panels]
    omitted = sum(len(bars[_MAX_BARS:]) for bars in visible)
    if omitted:
        note = f"{note.removesuffix('.')}; without {omitted} bars after the first {_MAX_BARS}"
    has_note = len(panels) == 1 or omitted > 0
    top = 52 if has_note else 34
    legend, rows = _legend(list(coloring.legend({bar.kind for panel in panels for bar in panel.bars})), top, width)
    top += rows * _LEGEND_ROW + _GAP
    drawn = list[str]()
    for panel, bars in zip(panels, visible, strict=True):
        drawn += _panel(panel, top, bars[:_MAX_BARS])
        top += _height(panel)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" height="{top}" '
        f'role="img" font-family="system-ui,sans-serif" font-size="11"><title>{escape(title)}</title>'
        f"<desc>{escape(note)}</desc>",
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{width}" height="{top}"/>',
        f'<text x="16" y="22" font-size="15">{escape(title)}</text>',
        *([f'<text class="faint" x="16" y="40">{escape(note)}</text>'] if has_note else []),
        *legend,
        *drawn,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _height(panel: Panel) -> int:
    return (_HEADING if panel.heading else 0) + len(panel.rows) * (_ROW + _GAP) + _BOTTOM


def _extent(panel: Panel) -> tuple[float, float]:
    """The begin and the length of the panel's axis."""
    begin = min((bar.begin for bar in panel.bars), default=0.0)
    length = max((bar.end for bar in panel.bars), default=0.0) - begin
    return begin, length if length > _LEAST_LENGTH else 1.0


def _visible(panel: Panel) -> list[VisibleBar]:
    """The bars that are wide enough."""
    _, length = _extent(panel)
    narrowest = _LEAST_WIDTH * length / _WIDTH
    found = zip(panel.bars, _free_parts(panel.bars), strict=True)
    return [(bar, part) for bar, part in found if bar.end - bar.begin >= narrowest]


def _panel(panel: Panel, top: int, visible: Iterable[VisibleBar]) -> Iterator[str]:
    """The panel with its upper edge at `top`."""
    begin, length = _extent(panel)
    bottom = top + _height(panel) - _BOTTOM
    if panel.heading:
        yield f'<text x="{_LEFT}" y="{top + 10}" font-size="13">{escape(panel.heading)}</text>'
        top += _HEADING
    yield from _axis(begin, length, top, bottom, panel.unit)
    for row, name in enumerate(panel.rows):
        yield f'<text x="{_LEFT - 8}" y="{_y(top, row) + _ROW * 0.65:.0f}" text-anchor="end">{escape(name)}</text>'
    yield from _rectangles(visible, begin, _WIDTH / length, top)


def _rectangles(bars: Iterable[VisibleBar], begin: float, scale: float, top: int) -> Iterator[str]:
    for bar, (left, right) in bars:
        x, width = _LEFT + (bar.begin - begin) * scale, (bar.end - bar.begin) * scale
        inset = min(4 * bar.depth, _ROW // 3)
        y, height = _y(top, bar.row) + inset, _ROW - 2 * inset
        text = ""
        length = (len(bar.label) + bar.label.count("W") * 0.6) * _CHAR
        size = next((size for size in _LABELS if length * size / _LABELS[0] < (right - left) * scale - 3), None)
        if size is not None:
            middle = _LEFT + ((left + right) / 2 - begin) * scale
            place = f'x="{middle:.2f}" y="{y + height / 2 + 4:.1f}"' + (
                f' font-size="{size}"' if size < _LABELS[0] else ""
            )
            pale = " on-pale" if bar.kind in PALE else ""
            text = f'<text class="label{pale}" {place}>{escape(bar.label)}</text>'
        yield (
            f'<g><title>{escape(bar.hint)}</title><rect class="{bar.kind}" x="{x:.2f}" y="{y}" width="{width:.2f}" '
            f'height="{height}" rx="2"/>{text}</g>'
        )


def _free_parts(bars: Sequence[Bar]) -> list[tuple[float, float]]:
    """The longest part of each bar that no bar inside it covers. The bars of a row are in the order of their begins.

    The time is linear: backwards, the bars inside a bar are known, and it hides them from the bars around it.
    """
    parts = list[tuple[float, float]]()
    later = list[tuple[Bar, float]]()
    """Bars with the end of what they and the bars inside them cover; the next one is the last."""
    for bar in reversed(bars):
        longest, begin = (bar.begin, bar.begin), bar.begin
        while later and later[-1][0].row == bar.row and later[-1][0].depth > bar.depth:
            inner, covered = later.pop()
            longest = max(longest, (begin, inner.begin), key=_length)
            begin = max(begin, covered)
        parts.append(max(longest, (begin, bar.end), key=_length))
        later.append((bar, max(begin, bar.end)))
    return parts[::-1]


def _length(part: tuple[float, float]) -> float:
    return part[1] - part[0]


def _legend(entries: Sequence[LegendEntry], top: int, width: int) -> tuple[list[str], int]:
    """The legend with its upper edge at `top`, and the number of its rows."""
    drawn, x, row = list[str](), 16.0, 0
    for classes, meaning, starts_group in (
        (one.classes, cut(one.meaning, _LEGEND_CHARS), one.starts_group) for one in entries
    ):
        length = 16 * len(classes) + len(meaning) * _CHAR
        x += _LEGEND_GAP if starts_group and x > 16 else 0
        if x + length > width - 16 and x > 16:
            x, row = 16.0, row + 1
        y = top + row * _LEGEND_ROW
        for place, name in enumerate(classes):
            drawn.append(f'<rect class="{name}" x="{x + 16 * place:.0f}" y="{y}" width="12" height="12" rx="2"/>')
        drawn.append(f'<text x="{x + 16 * len(classes):.0f}" y="{y + 10}">{escape(meaning)}</text>')
        x += length + (14 if classes else 6)
    return drawn, row + 1 if entries else 0


def _axis(begin: float, length: float, top: int, bottom: int, unit: str) -> Iterator[str]:
    step = nice_step(length / _TICKS)
    decimals = max(0, -math.floor(math.log10(step)))
    for tick in range(math.ceil(begin / step - 1e-9), math.floor((begin + length) / step + 1e-9) + 1):
        value = tick * step
        x = _LEFT + _WIDTH * (value - begin) / length
        yield f'<path class="grid" d="M{x:.1f} {top - 4}V{bottom}"/>'
        yield f'<text class="faint" x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{value:.{decimals}f}</text>'
    yield f'<text class="faint" x="{_LEFT}" y="{bottom + 30}">{unit}</text>'


def _y(top: int, row: int) -> int:
    return top + row * (_ROW + _GAP)
