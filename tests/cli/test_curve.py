"""Curves of Braille characters, and the parameters that a user has chosen."""

import math

import pytest

from rolecall.cli.curve import plot, sparkline
from rolecall.master import catalogue
from rolecall.master.catalogue import schema_of
from rolecall.spec.job import JobRequest
from rolecall.spec.json_schema import chosen_params


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
