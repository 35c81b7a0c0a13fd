"""Tables and charts of a job's metrics. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from rolecall.client.chart import Chart, Point
from rolecall.client.chart import ChartSeries as Line
from rolecall.spec.api import COORDINATES, Series


def table(series: Sequence[Series]) -> list[dict[str, Any]]:
    """The steps of all workers, one row for each."""
    return [
        {"attempt": one.attempt, "rank": one.rank, "role": str(one.role), "role_rank": one.role_rank} | point
        for one in series
        for point in one.points
    ]


def metric_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the values that workers reported: `loss` first, the others in alphabetical order."""
    found = {name for row in rows for name, value in row.items() if isinstance(value, int | float)}
    found.difference_update(COORDINATES)
    return sorted(found, key=lambda name: (name != "loss", name))


def curves(rows: Sequence[Mapping[str, Any]], metric: str, title: str) -> Chart:
    """A chart of `metric` over the steps, with a line for each worker that reported it.

    A later attempt replaces the steps that it repeats. At least one row must have the metric.
    """
    lines: dict[tuple[int, str], dict[float, float]] = {}
    for row in sorted(rows, key=lambda row: (row["attempt"], row["step"])):
        value = row.get(metric)
        if isinstance(value, int | float):
            line = lines.setdefault((row["rank"], f"{row['role']}-{row['role_rank']}"), {})
            line[row["step"]] = value
    steps = sorted({step for line in lines.values() for step in line})
    places = {step: place for place, step in enumerate(steps)}
    series = tuple(
        Line(worker, tuple(Point(places[step], line[step]) for step in sorted(line)))
        for (_, worker), line in sorted(lines.items())
    )
    note = f"{len(steps)} steps"
    return Chart(title, note, "step", metric, tuple(steps), series, has_markers=False)
