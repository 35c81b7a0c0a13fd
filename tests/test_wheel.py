"""The files that a wheel would have; none is built."""

import re
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]
WEB = Path("rolecall/master/web")


def test_the_wheel_has_every_script_and_style_of_the_page() -> None:
    """Also those that Git ignores, which hatchling leaves out by default."""
    packed = {included.distribution_path for included in WheelBuilder(str(ROOT)).recurse_included_files()}
    templates = (ROOT / "services" / WEB / "templates").rglob("*.html")
    named = {name for page in templates for name in re.findall(r"/ui/(static/[\w./-]+)", page.read_text())}
    assert {"static/vendor/htmx.min.js", "static/vendor/uPlot.iife.min.js", "static/vendor/uPlot.min.css"} <= named
    assert {str(WEB / name) for name in named} <= packed
