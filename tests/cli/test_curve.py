"""Curves of Braille characters, the filter of logs, and the parameters that a user has chosen."""

import math
import re
from datetime import UTC, datetime

import pytest

from rolecall.cli.chosen_params import chosen_params
from rolecall.cli.curve import plot, sparkline
from rolecall.cli.log_filter import matching, since, time_of
from rolecall.master import catalogue
from rolecall.master.catalogue import schema_of
from rolecall.spec.job import JobRequest


def test_a_rising_line_goes_from_the_bottom_left_to_the_top_right() -> None:
    top, bottom, axis = plot([(0, 0.0), (1, 1.0)], 12, 2)
    assert (top[:11], bottom[:11]) == ("        1 ┤", "        0 ┤")
    assert len(top) == len(bottom) + 1 or len(top.rstrip("⠀")) > len(bottom), "it ends at the top"
    assert bottom[11] != "⠀", "it begins at the bottom"
    assert top[11] == "⠀"
    assert axis.split() == ["step", "0", "1"]


@pytest.mark.parametrize(
    "values", [[5.0], [5.0, 5.0], [-1.7e308, 1.7e308], [0.0, 5e-324], [math.nan, 1.0, math.inf], [1e-9, 1e9] * 500]
)
def test_any_values_fit_into_the_terminal(values: list[float]) -> None:
    lines = plot(list(enumerate(values)), 40, 5)
    assert len(lines) == 6
    assert all(len(line) <= 40 for line in lines)
    assert any(set(line) - set(" ⠀┤") for line in lines[:-1])


def test_no_values_are_a_note() -> None:
    assert plot([(1, math.nan)], 40, 5) == ["no values yet"]
    assert sparkline([math.inf], 5) == ""


def test_a_sparkline_has_the_mean_of_each_part() -> None:
    assert sparkline([0, 0, 7, 7], 2) == "▁█"
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 20) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.7e308, 1.7e308], 1) == "▅"


LOG = """\
[trainer-0] 2026-01-01 11:00:00.000+00:00 ERROR old
[trainer-0]     Traceback of the old one
[trainer-0] printed after the old one
[trainer-0] 2026-01-01 11:59:00.000+00:00 INFO old as well
[trainer-0] printed at an unknown time
[trainer-0] 2026-01-01 14:30:00.000+02:00 INFO new
[trainer-0]     Traceback of the new one
[trainer-1] printed before the only record
[trainer-1] {"time": "2026-01-01T11:00:00+0000", "level": "INFO"}
[trainer-2] only printed""".splitlines()


def test_older_records_are_left_out_with_what_precedes_them() -> None:
    moment = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert list(since(LOG, moment)) == [LOG[4], LOG[5], LOG[6], LOG[9]]
    assert list(since(LOG, datetime(2025, 1, 1, tzinfo=UTC))) == LOG
    assert list(matching(LOG, re.compile("Trace.*new"))) == [LOG[6]]


@pytest.mark.parametrize("text", ["", "2026-01-01 11:00:00,000 INFO no offset", "2026-99-01 11:00:00+00:00", "{}"])
def test_other_texts_have_no_time(text: str) -> None:
    assert time_of(text) is None


@pytest.mark.parametrize("name", sorted(catalogue.load().workloads))
def test_only_what_an_example_sets_differs_from_the_defaults(name: str) -> None:
    installed = catalogue.load()
    example = installed.example(name)
    assert example is not None
    complete = installed.check_request(JobRequest.model_validate(example))["params"]
    chosen = chosen_params(schema_of(installed.workloads[name].params), complete)
    assert chosen.keys() <= example.get("params", {}).keys()
    # What is left is the same job.
    again = installed.check_request(JobRequest.model_validate(example | {"params": chosen}))["params"]
    assert again == complete
