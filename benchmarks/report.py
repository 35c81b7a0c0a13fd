"""Reports of results: Markdown, JSON and charts."""

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.contest import Contest, Floor, Goal, Result, Run
from benchmarks.machine import CORES
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
        f"{machine['rolecall']} at {machine['commit']}; {machine['packages']}. One thread: "
        f"{machine['gflops_per_thread']} GFLOP/s in a "
        f"product of float32 matrices, {machine['copy_gb_per_s']} GB/s in a copy."
    )
    yield (
        "Memory is the largest of each process, in total, without files, and without what it shares with other "
        "processes, such as the modules that the workers' fork server has imported."
    )
    for result in results:
        yield from ("", f"### {result.contest.title}", "", f"{result.contest.work}. ")
        yield from ("", *_rates(result), "", *_processes(result))
        yield from ("", *_activities(result), *_bubbles(result))
        yield from (_floor(floor, machine, result) for floor in (result.contest.floor,) if floor is not None)
        yield from _goals(result)


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
    yield "| contender | CPU per step, by process | of the step | peak memory in MiB (anonymous, private) |"
    yield "|---|---|---|---|"
    for contender in result.contest.contenders:
        median = result.median(contender.name)
        if not median.cpu_ms:
            continue
        cpu = ", ".join(f"{name} {ms:.0f} ms" for name, ms in median.cpu_ms.items())
        busy = sum(median.cpu_ms.values()) / median.step_ms if median.step_ms else 0.0
        memory = ", ".join(
            f"{name} {_mib(size)} ({_mib(median.anonymous_bytes.get(name, 0))}, "
            f"{_mib(median.private_bytes.get(name, 0))})"
            for name, size in median.peak_bytes.items()
        )
        yield f"| {contender.name} | {cpu} | {busy:.2f} cores busy | {memory} |"


def _activities(result: Result) -> Iterator[str]:
    medians = {contender.name: result.median(contender.name) for contender in result.contest.contenders}
    if not any(median.seconds for median in medians.values()):
        return
    yield "| contender | time of the main thread in steps, by process |"
    yield "|---|---|"
    for name, median in medians.items():
        if median.seconds:
            yield f"| {name} | {'; '.join(f'{process} {_shares(of)}' for process, of in median.seconds.items())} |"
    yield ""


def _shares(seconds: Mapping[str, float]) -> str:
    whole = sum(seconds.values())
    shares = {activity: spent / whole for activity, spent in seconds.items()}
    return ", ".join(f"{activity} {share:.0%}" for activity, share in shares.items() if share >= 0.005)


def _bubbles(result: Result) -> Iterator[str]:
    """The median of each bubble over the rounds."""
    pipelines = {name: runs for name, runs in result.runs.items() if any(run.bubble is not None for run in runs)}
    if not pipelines:
        return
    yield "| contender | measured bubble | simulated with the mean pass times and no communication | in theory |"
    yield "|---|---|---|---|"
    for name, runs in pipelines.items():
        kinds = (
            [run.bubble for run in runs],
            [run.bubble_simulated for run in runs],
            [run.bubble_theory for run in runs],
        )
        yield f"| {name} | {' | '.join(map(_median_share, kinds))} |"
    yield ""


def _median_share(shares: Iterable[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return f"{statistics.median(known):.1%}" if known else ""


def _floor(floor: Floor, machine: Mapping[str, str | float], result: Result) -> str:
    """The least time of a step on all cores, from what they can do at most, and the rate that it allows."""
    computing_s = floor.flops / (CORES * float(machine["gflops_per_thread"]) * 1e9)
    moving_s = floor.bytes / (CORES * float(machine["copy_gb_per_s"]) * 1e9)
    least_s = computing_s + moving_s
    return (
        f"Floor of a step on {CORES} cores: {least_s * 1e3:.1f} ms, {_figure(floor.units / least_s)} "
        f"{result.contest.unit}/s: {computing_s * 1e3:.1f} ms for {floor.flops / 1e9:.2f} GFLOP and "
        f"{moving_s * 1e3:.1f} ms for {floor.bytes / 1e6:.0f} MB ({floor.derivation}).\n"
    )


def _goals(result: Result) -> Iterator[str]:
    if not result.contest.goals:
        return
    yield "| goal | measured | reached |"
    yield "|---|---|---|"
    for goal in result.contest.goals:
        measured = goal.measure(result)
        reached = "yes" if goal.is_reached(measured) else "**no**"
        yield f"| {goal.text} | {goal.figure(measured)} | {reached} |"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f}"


def _figure(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 10 else f"{rate:.2f}"


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
                "goals": [_goal(goal, result) for goal in result.contest.goals],
            }
            for result in results
        ],
    }


def _goal(goal: Goal, result: Result) -> dict[str, object]:
    measured = goal.measure(result)
    return {**asdict(goal), "goal": goal.text, "measured": measured, "reached": goal.is_reached(measured)}


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
