"""The colors of bars can be told apart, and their labels can be read."""

import re
from itertools import combinations

from rolecall.kit.coloring import STYLE


def test_labels_are_readable_on_the_bars_of_all_colors() -> None:
    """Pale bars have labels in the color of other text."""
    for style in STYLE.split("@media"):
        usual, pale = re.findall(r"\.label(?:\.on-pale)?{fill:(#\w+)", style)
        bars_ = re.findall(r"\.([a-zA-Z]+-\d){fill:(#\w+)}", style)
        assert len(bars_) == 23
        is_pale = {name: name == "wait-0" or not name.endswith("-0") for name, _ in bars_}
        unreadable = [name for name, color in bars_ if contrast(color, pale if is_pale[name] else usual) < 4.5]
        assert not unreadable


def test_the_colors_of_one_kind_differ_in_brightness() -> None:
    for style in STYLE.split("@media"):
        colors = dict(re.findall(r"\.([a-zA-Z]+-\d){fill:(#\w+)}", style))
        for kind in ("F", "B", "I", "W", "compute", "communication"):
            own = [color for name, color in colors.items() if name.startswith(f"{kind}-")]
            assert min(contrast(*pair) for pair in combinations(own, 2)) > 1.35, own


def contrast(*colors: str) -> float:
    """The ratio of the luminances of two colors, as WCAG defines it."""
    dark, light = sorted(map(luminance, colors))
    return (light + 0.05) / (dark + 0.05)


def luminance(color: str) -> float:
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(part * weight for part, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))
