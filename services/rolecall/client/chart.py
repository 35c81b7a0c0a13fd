"""Charts as SVG: lines over a numeric axis, or bars for categories. Pure: values in, text out.

The colors follow the reader's light or dark mode, each on a background of its own, so that the chart is readable on
any page.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from rolecall.spec.bounds import storable
from rolecall.spec.ticks import nice_step
from rolecall.spec.visible import cut, one_line

_LEFT, _TOP, _BOTTOM, _MARGIN = 84, 64, 64, 24
_PLOT_WIDTH, _PLOT_HEIGHT = 600, 320
_TICKS = 5
_MANY = 20
"""A larger number of values on the horizontal axis has round labels."""
_CHAR = 6.6
"""The average width of a character in 12 pixels."""
_LEAST_RANGE = 1e-300
"""A smaller range of values has no steps that floats can represent."""
_LEGEND_ROW = 22
_LEGEND_CHARS = 40
_CLOSE = 1e-4
"""Labels have 6 digits: enough for the steps of a range of this size, relative to its values."""
_LIGHT = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#7d5c00", "#1b7c83", "#57606a")
_DARK = ("#58a6ff", "#f0883e", "#3fb950", "#bc8cff", "#f778ba", "#d4a72c", "#39c5cf", "#b1bac4")
_MARKERS = (
    '<circle cx="{x}" cy="{y}" r="4.5"/>',
    '<path d="M{x} {y}m-4.5 -4.5h9v9h-9z"/>',
    '<path d="M{x} {y}m0 -6l6 6l-6 6l-6 -6z"/>',
    '<path d="M{x} {y}m0 -6l5.5 10h-11z"/>',
)
"""Series with the same color have different markers."""


@dataclass(frozen=True, slots=True)
class Point:
    """A value with its deviation; `x` is an index of the chart's `x_values`."""

    x: int
    y: float
    deviation: float = 0.0


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """A line, or bars of one color."""

    label: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """The content of a chart: lines if all `x_values` are numbers, otherwise bars. Each series has a point or more."""

    title: str
    note: str
    """A line below the title."""
    x_title: str
    y_title: str
    x_values: tuple[float, ...] | tuple[str, ...]
    series: tuple[ChartSeries, ...]
    has_markers: bool = True
    """True if each point of a line has a marker. Curves with hundreds of points have none."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart that notebooks show as SVG."""

    chart: Chart

    def __str__(self) -> str:
        """The SVG document."""
        return svg(self.chart)

    _repr_svg_ = __str__


def svg(chart: Chart) -> str:
    """The chart as an SVG document."""
    lows = [point.y - point.deviation for series in chart.series for point in series.points]
    highs = [point.y + point.deviation for series in chart.series for point in series.points]
    x = _Numbers.of(chart.x_values) or _Categories(tuple(map(str, chart.x_values)))
    y = _Values.of(lows, highs, from_zero=isinstance(x, _Categories))
    labeled = chart.series if len(chart.series) > 1 else ()
    legend_width = max((_width(cut(one.label, _LEGEND_CHARS)) + 44 for one in labeled), default=0)
    width = _LEFT + _PLOT_WIDTH + _MARGIN + legend_width
    height = _TOP + max(_PLOT_HEIGHT, _LEGEND_ROW * len(labeled)) + _BOTTOM
    body = [*_frame(chart, x, y), *_data(chart, x, y), *_legend(labeled)]
    return "\n".join([*_head(chart, round(width), height), *body, "</svg>", ""])


@dataclass(frozen=True, slots=True)
class _Numbers:
    """The horizontal axis of lines: linear or logarithmic, whichever spaces the values more evenly."""

    values: tuple[float, ...]
    logarithmic: bool

    @classmethod
    def of(cls, values: Sequence[float | str]) -> "_Numbers | None":
        numbers = tuple(value for value in values if not isinstance(value, str))
        if len(numbers) < len(values):
            return None
        logs = [math.log(value) for value in numbers] if min(numbers) > 0 else []
        return cls(numbers, logarithmic=bool(logs) and _unevenness(logs) < _unevenness(numbers) * 0.99)

    def at(self, index: int) -> float:
        return self._place(self.values[index])

    def labels(self) -> Iterator[tuple[float, str]]:
        """The values, without those whose labels would overlap; or round values, if there are many."""
        end = -math.inf
        for value in self._labeled():
            text, place = _number(value), self._place(value)
            if place - _width(text) / 2 > end:
                end = place + _width(text) / 2 + 4
                yield place, text

    def _labeled(self) -> list[float]:
        low, high = min(self.values), max(self.values)
        if len(self.values) <= _MANY or self.logarithmic or high <= low:
            return sorted(self.values)
        step = nice_step((high - low) / (2 * _TICKS))
        return [step * place for place in range(math.ceil(low / step), math.floor(high / step) + 1)]

    def _place(self, value: float) -> float:
        low, high = (self._scaled(bound) for bound in (min(self.values), max(self.values)))
        share = (self._scaled(value) - low) / (high - low) if high > low else 0.5
        return _LEFT + _PLOT_WIDTH * (0.05 + 0.9 * share)

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.logarithmic else value


@dataclass(frozen=True, slots=True)
class _Categories:
    """The horizontal axis of bars."""

    names: tuple[str, ...]

    @property
    def band(self) -> float:
        return _PLOT_WIDTH / len(self.names)

    def at(self, index: int) -> float:
        return _LEFT + self.band * (index + 0.5)

    def labels(self) -> Iterator[tuple[float, str]]:
        for index, name in enumerate(self.names):
            yield self.at(index), cut(name, max(2, int(self.band / _CHAR)))


@dataclass(frozen=True, slots=True)
class _Values:
    """The vertical axis."""

    low: float
    high: float
    step: float

    @classmethod
    def of(cls, lows: Sequence[float], highs: Sequence[float], *, from_zero: bool) -> "_Values":
        """The range of the values; includes zero for bars, and for lines unless they vary by less than a quarter.

        It also includes zero if the values differ so little that the labels of a smaller range would be equal.
        """
        low, high = min(lows), max(highs)
        if from_zero or math.isclose(low, high, rel_tol=_CLOSE) or 0 < low < high * 0.75 or 0 > high > low * 0.75:
            low, high = min(low, 0.0), max(high, 0.0)
        if high - low < _LEAST_RANGE:
            high = low + 1
        step = nice_step((high - low) / _TICKS)
        return cls(math.floor(low / step) * step, math.ceil(high / step) * step, step)

    def at(self, value: float) -> float:
        return _TOP + _PLOT_HEIGHT * (self.high - value) / (self.high - self.low)

    def labels(self) -> Iterator[tuple[float, str]]:
        for index in range(round((self.high - self.low) / self.step) + 1):
            value = self.low + index * self.step
            yield self.at(value), _number(round(value / self.step) * self.step)


def _unevenness(values: Sequence[float]) -> float:
    """The ratio of the largest to the smallest distance between neighbors."""
    gaps = [after - before for before, after in pairwise(sorted(values))]
    return max(gaps) / min(gaps) if gaps and min(gaps) > 0 else 1.0


def _number(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e6 and value == round(value) else f"{value:.6g}"


def _head(chart: Chart, width: int, height: int) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="12">'
    )
    heading = _text(cut(chart.title, int(_PLOT_WIDTH / (_CHAR * 16 / 12))))
    yield f"<title>{_text(chart.title)}</title>"
    yield "<style>"
    yield from _colors("#ffffff", "#1f2328", "#59636e", "#d1d9e0", _LIGHT)
    yield "@media (prefers-color-scheme: dark) {"
    yield from _colors("#0d1117", "#f0f6fc", "#9198a1", "#3d444d", _DARK)
    yield "}"
    yield "</style>"
    yield f'<rect class="page" width="{width}" height="{height}" rx="6"/>'
    yield f'<text class="ink" x="{_LEFT}" y="28" font-size="16" font-weight="600">{heading}</text>'
    yield f'<text class="pale" x="{_LEFT}" y="48">{_text(chart.note)}</text>'


def _colors(page: str, ink: str, pale: str, grid: str, series: Sequence[str]) -> Iterator[str]:
    yield f".page {{fill: {page}}} .ink {{fill: {ink}}} .pale {{fill: {pale}}} .grid {{stroke: {grid}}}"
    yield f".axis, .error {{stroke: {ink}; stroke-width: 1.5; fill: none}}"
    for index, color in enumerate(series):
        yield f".s{index} {{fill: {color}}} .l{index} {{stroke: {color}; stroke-width: 2; fill: none}}"


def _frame(chart: Chart, x: _Numbers | _Categories, y: _Values) -> Iterator[str]:
    right, bottom = _LEFT + _PLOT_WIDTH, _TOP + _PLOT_HEIGHT
    for at, label in y.labels():
        yield f'<path class="grid" d="M{_LEFT} {at:.1f}H{right}"/>'
        yield f'<text class="pale" x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{label}</text>'
    for at, label in x.labels():
        yield f'<path class="axis" d="M{at:.1f} {bottom}v5"/>'
        yield f'<text class="pale" x="{at:.1f}" y="{bottom + 20}" text-anchor="middle">{_text(label)}</text>'
    yield f'<path class="axis" d="M{_LEFT} {bottom}H{right}"/>'
    middle, center = _LEFT + _PLOT_WIDTH // 2, _TOP + _PLOT_HEIGHT // 2
    x_title, y_title = cut(chart.x_title, int(_PLOT_WIDTH / _CHAR)), cut(chart.y_title, int(_PLOT_HEIGHT / _CHAR))
    yield f'<text class="ink" x="{middle}" y="{bottom + 46}" text-anchor="middle">{_text(x_title)}</text>'
    yield (
        f'<text class="ink" x="18" y="{center}" text-anchor="middle" transform="rotate(-90 18 {center})">'
        f"{_text(y_title)}</text>"
    )


def _data(chart: Chart, x: _Numbers | _Categories, y: _Values) -> Iterator[str]:
    for index, series in enumerate(chart.series):
        if isinstance(x, _Categories):
            yield from _bars(index, len(chart.series), series, x, y)
        else:
            yield from _line(index, series, x, y, has_markers=chart.has_markers)


def _line(index: int, series: ChartSeries, x: _Numbers, y: _Values, *, has_markers: bool) -> Iterator[str]:
    points = sorted(series.points, key=lambda point: x.values[point.x])
    places = [(x.at(point.x), y.at(point.y)) for point in points]
    path = "L".join(f"{at:.1f} {level:.1f}" for at, level in places)
    yield f'<path class="l{index % len(_LIGHT)}" d="M{path}"/>'
    for point, (at, level) in zip(points, places, strict=True):
        yield from _error(at, point, y)
        if has_markers or len(places) == 1:
            yield f'<g class="s{index % len(_LIGHT)}">{_marker(index, at, level)}</g>'


def _bars(index: int, count: int, series: ChartSeries, x: _Categories, y: _Values) -> Iterator[str]:
    width = min(72.0, x.band * 0.76 / count)
    for point in series.points:
        at = x.at(point.x) + (index - (count - 1) / 2) * width
        top, bottom = sorted((y.at(point.y), y.at(0.0)))
        yield (
            f'<rect class="s{index % len(_LIGHT)}" x="{at - width / 2:.1f}" y="{top:.1f}" width="{width * 0.92:.1f}" '
            f'height="{bottom - top:.1f}"><title>{_text(x.names[point.x])}</title></rect>'
        )
        yield from _error(at - width * 0.04, point, y)


def _error(at: float, point: Point, y: _Values) -> Iterator[str]:
    if point.deviation:
        low, high = y.at(point.y - point.deviation), y.at(point.y + point.deviation)
        yield f'<path class="error" d="M{at - 5:.1f} {high:.1f}h10M{at:.1f} {high:.1f}V{low:.1f}m-5 0h10"/>'


def _marker(index: int, x: float, y: float) -> str:
    return _MARKERS[index // len(_LIGHT) % len(_MARKERS)].format(x=f"{x:.1f}", y=f"{y:.1f}")


def _legend(labeled: Sequence[ChartSeries]) -> Iterator[str]:
    left = _LEFT + _PLOT_WIDTH + 24
    for index, series in enumerate(labeled):
        at = _TOP + 10 + _LEGEND_ROW * index
        yield f'<g class="s{index % len(_LIGHT)}">{_marker(index, left, at)}</g>'
        yield f'<text class="ink" x="{left + 14}" y="{at + 4}">{_text(cut(series.label, _LEGEND_CHARS))}</text>'


def _width(text: str) -> float:
    return len(text) * _CHAR


def _text(text: str) -> str:
    """`text` as the content of an element."""
    return escape(one_line(storable(text)))
