"""Reports of results: Markdown, JSON and charts."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.contest import Contest, Goal, Result, Run
from rolecall.client.chart import Chart, ChartSeries, Point, svg


def write(folder: Path, machine: Mapping[str, str | float], results: Sequence[Result]) -> None:
    """Write `report.md`, `report.json` and a chart for each contest to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.md").write_text("\n".join(markdown(machine, results)) + "\n")
    (folder / "report.json").write_text(json.dumps(document(machine, results), indent=2) + "\n")
    for result in results:
        (folder / f"{file_name(result.contest)}.svg").write_text(chart(result))


def file_name(contest: Contest) -> str:
    """The contest's title as the name of a file."""
    return "".join(char if char.isalnum() else "-" for char in contest.title.lower())


def markdown(machine: Mapping[str, str | float], results: Sequence[Result]) -> Iterator[str]:
    """The report's lines."""
    yield (
        f"{machine['cpu']}, {machine['cores']} cores; Python {machine['python']}, torch {machine['torch']}, Rolecall "
        f"{machine['rolecall']} at {machine['commit']}. One thread: {machine['gflops_per_thread']} GFLOP/s in a "
        f"product of float32 matrices, {machine['copy_gb_per_s']} GB/s in a copy."
    )
    for result in results:
        yield from ("", f"### {result.contest.title}", "", f"{result.contest.work}. ")
        yield from ("", *_rates(result), "", *_processes(result))
        yield from ("", *(_verdict(goal, result) for goal in result.contest.goals))


def _rates(result: Result) -> Iterator[str]:
    limit = next((contender.name for contender in result.contest.contenders if contender.is_limit), None)
    unit = result.contest.unit
    yield f"| contender | {unit}/s | all runs | of {limit or 'the limit'} | step | first step |"
    yield "|---|---|---|---|---|---|"
    for contender in result.contest.contenders:
        median, runs = result.median(contender.name), result.runs[contender.name]
        every = ", ".join(_figure(run.rate) for run in runs)
        share = f"{result.ratio(contender.name, limit):.2f}" if limit else ""
        yield (
            f"| {contender.name} | {_figure(median.rate)} | {every} | {share} | {median.step_ms:.1f} ms | "
            f"{median.first_step_s:.1f} s |"
        )


def _processes(result: Result) -> Iterator[str]:
    yield "| contender | CPU per step, by process | of the step | peak memory |"
    yield "|---|---|---|---|"
    for contender in result.contest.contenders:
        median = result.median(contender.name)
        cpu = ", ".join(f"{name} {ms:.0f} ms" for name, ms in median.cpu_ms.items())
        busy = sum(median.cpu_ms.values()) / median.step_ms if median.step_ms else 0.0
        memory = ", ".join(f"{name} {size / 2**20:,.0f} MiB" for name, size in median.peak_bytes.items())
        yield f"| {contender.name} | {cpu} | {busy:.2f} cores busy | {memory} |"


def _verdict(goal: Goal, result: Result) -> str:
    ratio = result.ratio(goal.contender, goal.other)
    met = "met" if ratio >= goal.factor else "**not met**"
    return f"- {goal.contender} is at least {goal.factor:g} times {goal.other}: {met}, {ratio:.2f}"


def _figure(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def document(machine: Mapping[str, str | float], results: Sequence[Result]) -> dict[str, object]:
    """Everything that was measured."""
    return {
        "machine": dict(machine),
        "contests": [
            {
                "title": result.contest.title,
                "unit": result.contest.unit,
                "work": result.contest.work,
                "runs": {name: [asdict(run) for run in runs] for name, runs in result.runs.items()},
                "goals": [
                    asdict(goal) | {"ratio": result.ratio(goal.contender, goal.other)} for goal in result.contest.goals
                ],
            }
            for result in results
        ],
    }


def chart(result: Result) -> str:
    """Bars of the median rates, with the spread of the runs."""
    names = tuple(contender.name for contender in result.contest.contenders)
    points = tuple(Point(x, result.median(name).rate, _spread(result.runs[name])) for x, name in enumerate(names))
    unit = f"{result.contest.unit}/s"
    series = ChartSeries(unit, points)
    return svg(Chart(result.contest.title, result.contest.work, "contender", unit, names, (series,)))


def _spread(runs: Sequence[Run]) -> float:
    rates = [run.rate for run in runs]
    return (max(rates) - min(rates)) / 2
