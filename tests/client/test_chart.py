"""Charts are parsed as XML, and the places of their marks are compared with the values."""

import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from rolecall.client.chart import Chart, ChartSeries, Point, svg


def chart(x: tuple[float, ...] | tuple[str, ...], *lines: tuple[Point, ...], title: str = "t") -> ET.Element:
    series = tuple(ChartSeries(f"series {index}", line) for index, line in enumerate(lines))
    return ET.fromstring(svg(Chart(title, "note", "x title", "y title", x, series)))


def points(*values: float, deviation: float = 0.0) -> tuple[Point, ...]:
    return tuple(Point(index, value, deviation) for index, value in enumerate(values))


def elements(root: ET.Element, tag: str, kind: str) -> list[ET.Element]:
    return [one for one in root.iter(f"{{http://www.w3.org/2000/svg}}{tag}") if one.get("class", "") == kind]


def texts(root: ET.Element) -> dict[str, tuple[float, float]]:
    """The places of the texts."""
    found = root.iter("{http://www.w3.org/2000/svg}text")
    return {one.text or "": (float(one.get("x", "")), float(one.get("y", ""))) for one in found}


def path_points(path: ET.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path.get("d", ""))]


def test_a_line_goes_through_its_values() -> None:
    root = chart((1, 2, 4, 8), points(10, 20, 30, 40))
    (line,) = elements(root, "path", "l0")
    places = path_points(line)
    shown = texts(root)
    assert [x for x, _ in places] == [shown[label][0] for label in ("1", "2", "4", "8")]
    steps = [after[0] - before[0] for before, after in pairwise(places)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.2), "powers of two are spaced evenly"
    assert [y + 4 for _, y in places] == pytest.approx([shown[label][1] for label in ("10", "20", "30", "40")], abs=0.2)
    assert {"x title", "y title", "note"} <= shown.keys()
    assert "series 0" not in shown, "one series needs no legend"


def test_evenly_spaced_values_have_a_linear_axis_in_ascending_order() -> None:
    (line,) = elements(chart((3, 1, 2), points(30, 10, 20)), "path", "l0")
    (low, left), (middle, center), (high, right) = path_points(line)
    assert middle - low == pytest.approx(high - middle, abs=0.2)
    assert left > center > right, "larger values are higher"


def test_bars_start_at_zero_and_do_not_overlap() -> None:
    root = chart(("a", "b"), points(10, 20), points(30, 40))
    bars = [*elements(root, "rect", "s0"), *elements(root, "rect", "s1")]
    left, top, width, height = ([float(bar.get(key, "")) for bar in bars] for key in ("x", "y", "width", "height"))
    zero = texts(root)["0"][1] - 4
    assert [y + tall for y, tall in zip(top, height, strict=True)] == pytest.approx([zero] * 4, abs=0.2)
    assert [tall / height[0] for tall in height] == pytest.approx([1, 2, 3, 4], rel=0.01)
    spans = sorted(zip(left, width, strict=True))
    assert all(x + wide <= following for (x, wide), (following, _) in pairwise(spans))
    assert {"series 0", "series 1"} <= texts(root).keys()


def test_negative_values_hang_from_zero() -> None:
    root = chart(("a", "b"), points(-10, 20))
    below, above = elements(root, "rect", "s0")
    assert float(below.get("y", "")) == pytest.approx(
        float(above.get("y", "")) + float(above.get("height", "")), abs=0.2
    )


def test_deviations_are_bars_around_the_mean() -> None:
    root = chart((1, 2), points(20, 30, deviation=5))
    shown, (line,) = texts(root), elements(root, "path", "l0")
    bars = [re.findall(r"M([\d.]+) ([\d.]+)V([\d.]+)", one.get("d", "")) for one in elements(root, "path", "error")]
    assert [float(bar[0][0]) for bar in bars] == [x for x, _ in path_points(line)]
    per_unit = (shown["0"][1] - shown["20"][1]) / 20
    assert [float(bar[0][2]) - float(bar[0][1]) for bar in bars] == pytest.approx([10 * per_unit] * 2, abs=0.3)
    assert not elements(chart((1, 2), points(20, 30)), "path", "error")


@pytest.mark.parametrize(
    "values", [(0.0, 0.0), (5.0,), (-3.0, -3.0), (1e-9, 3e-9), (123456.0, 7e6), (0.99, 0.991), (1e300, -1e300)]
)
def test_every_mark_is_inside_the_axes_with_a_few_labels(values: tuple[float, ...]) -> None:
    root = chart(tuple(float(index) for index in range(len(values))), points(*values))
    grid = [float(re.findall(r"M\d+ ([\d.]+)", one.get("d", ""))[0]) for one in elements(root, "path", "grid")]
    (line,) = elements(root, "path", "l0")
    assert 2 <= len(grid) <= 8
    assert all(min(grid) - 0.1 <= y <= max(grid) + 0.1 for _, y in path_points(line))
    width = float(root.get("width", ""))
    assert all(0 < x < width for x, _ in texts(root).values())


@pytest.mark.parametrize("values", [(0.1, 0.1 + 2e-17), (0.693147180, 0.693147181), (-5e4, -50000.01), (0.5, 0.50005)])
def test_labels_of_the_values_differ_however_close_the_values_are(values: tuple[float, ...]) -> None:
    root = chart((1, 2), points(*values))
    labels = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text") if one.get("text-anchor") == "end"]
    assert len(labels) == len(set(labels)) > 1


def test_labels_do_not_overlap() -> None:
    many = tuple(float(n) for n in range(1000, 1100))
    root = chart(many, points(*range(100)))
    labels = sorted(x for text, (x, _) in texts(root).items() if re.fullmatch(r"1\d\d\d", text))
    assert len(labels) > 5
    assert min(after - before for before, after in pairwise(labels)) > 4 * 6


@pytest.mark.parametrize("title", ["<b>&\"'</svg>", "\x00\x1b[31m\x7f", "a\nb\u2028c", "\ud800", "]]>&#0;"])
def test_any_text_results_in_one_line_of_xml(title: str) -> None:
    root = chart((title, "b"), points(1, 2), title=title)
    assert "\n" not in (root[0].text or "")
    if title.startswith("<"):
        assert root[0].text == title


def test_long_titles_are_cut_to_fit_and_the_documents_title_is_whole() -> None:
    title = "a name of a job, " * 7
    root = ET.fromstring(svg(Chart(title, "note", title, title, (1, 2), (ChartSeries("", points(1, 2)),))))
    assert root[0].text == title
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    cut = [one for one in root.iter("{http://www.w3.org/2000/svg}text") if (one.text or "").startswith("a name")]
    heading, *axes = (len(one.text or "") for one in cut)
    assert heading * 6.6 * 16 / 12 < width
    assert len(axes) == 2
    assert all(chars * 6.6 < room for chars, room in zip(sorted(axes), (height, width), strict=True))


def test_it_is_readable_on_light_and_dark_pages() -> None:
    """Text and lines differ in luminance from the background of the same mode; graphics need a ratio of 3 (WCAG)."""
    style = elements(chart((1, 2), points(1, 2)), "style", "")[0].text or ""
    light, _, dark = style.partition("@media (prefers-color-scheme: dark)")
    for mode in (light, dark):
        colors = dict(re.findall(r"\.(\w+) \{fill: (#\w{6})\}", mode))
        assert len(colors) == 11
        page = luminance(colors.pop("page"))
        for name, color in colors.items():
            low, high = sorted((page, luminance(color)))
            assert (high + 0.05) / (low + 0.05) >= (4.5 if name in {"ink", "pale"} else 3), name


def luminance(color: str) -> float:
    """The relative luminance by WCAG 2."""
    shares = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
