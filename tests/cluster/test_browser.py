"""Measurements in a page that replaces its parts all the time."""

import pytest
from tests.cluster.browser import box_of, measure, started_browser

pytestmark = pytest.mark.slow

REPLACING = """
<div id="part"></div>
<script>
    function replace() {
        part.innerHTML = '<p style="height: 20px; color: red">text</p>';
        setTimeout(replace, 0);
    }
    replace();
</script>
"""
"""A plain `bounding_box()` is None in nine of ten calls."""


def test_elements_are_measured_while_the_page_replaces_them() -> None:
    with started_browser() as browser:
        page = browser.new_page()
        page.set_content(REPLACING)
        text = page.locator("p")
        assert {box_of(text)["height"] for _ in range(30)} == {20}
        assert {measure(text, "getComputedStyle(one).color") for _ in range(30)} == {"rgb(255, 0, 0)"}
