"""`rolecall sweep`: run a job with different values, and compare the results."""

import os
import uuid
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.follow import EXITS, follow_to_end, retry_while_unavailable
from rolecall.cli.job_file import File, parse_job, parse_setting, read_job
from rolecall.cli.job_paths import check_path
from rolecall.cli.options import Token, Url, connect
from rolecall.cli.output import ARROWS, STYLES, err, out, print_json, print_table, write_text
from rolecall.cli.variants import (
    SAMPLES_PER_S,
    Direction,
    Variant,
    best,
    chart,
    check_metric,
    direction,
    metrics,
    short,
    shown,
    variants,
)
from rolecall.client import Client, ClientError, Refused, UnknownName
from rolecall.client.chart import Chart, svg
from rolecall.spec.api import WorkloadDocument
from rolecall.spec.job import JobDocument
from rolecall.spec.numbers import NOT_FINITE, number
from rolecall.spec.state import JobState

_COLUMNS = {"wall_s": "SECONDS", SAMPLES_PER_S: "SAMPLES/S"}
_VALUE_CHARS, _REASON_CHARS = 16, 24
Set = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="PATH=VALUE,…",
        help="A field of the job and the values to compare, such as params.micro_batches=1,2,4,8. Values are JSON or "
        "text; lists need brackets. With several --set, every combination runs.",
    ),
]
Metric = Annotated[
    str | None,
    typer.Option(
        "--metric", metavar="NAME", help=f"Metric to show and plot, from the job's result; by default {SAMPLES_PER_S}."
    ),
]
Repeat = Annotated[
    int, typer.Option("--repeat", metavar="N", min=1, max=100, help="Runs of each combination, for mean and deviation.")
]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Write a plot of the metric as SVG.")]
Json = Annotated[bool, typer.Option("--json", help="Print the runs with all their metrics as JSON.")]


def sweep(  # noqa: PLR0917 - the command line is the signature
    file: File,
    sets: Set,
    metric: Metric = None,
    repeat: Repeat = 1,
    plot: Plot = None,
    json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Run a job with each combination of values, one after another, and compare speed and metrics.

    The master checks all combinations before the first job. If it refuses any, no job is created. A job that fails is
    shown with its reason, and the sweep continues. Ctrl-C cancels the running job. A job continues if the master stops
    answering, which ends the sweep after two minutes. In each case, the results so far are printed. If --metric is a
    speed, or the workload declares whether higher (↑) or lower (↓) values are better, the table marks the best one.
    """
    settings = [parse_setting(text) for text in sets]
    planned = variants(parse_job(file, read_job(file)), settings)
    # Before the first job, not after the last one.
    if plot and (plot.is_dir() or not os.access(plot.parent, os.W_OK)):
        raise CommandError(Exit.USAGE, f"can't write {plot}; name a file in a folder that exists and is writable")
    plotted, ending = metric or SAMPLES_PER_S, None
    wanted = plotted if metric or plot else None
    with connect(url, token) as client:
        workloads = _workloads(client, planned)
        for workload, (path, _) in product(workloads, settings):
            check_path(path, workload)
        if wanted:
            for workload in workloads:
                check_metric(wanted, workload)
        try:
            _check_all(client, planned)
            _run_all(client, planned, repeat, wanted)
        except KeyboardInterrupt:
            ending = _cancel(client, planned)
        except (CommandError, ClientError) as error:
            ending = error
    done = [variant for variant in planned if variant.runs]
    declared = [one for workload in workloads for one in workload.metrics]
    _print(done, metric, direction(declared, metric) if metric else None, as_json=json)
    if plot:
        missing = [variant.title for variant in planned if variant.spread(plotted) is None]
        _plot(plot, chart(done, settings, plotted), missing)
    if ending:
        raise ending
    states = {run.state for variant in done for run in variant.runs}
    worst = next((state for state in (JobState.FAILED, JobState.CANCELLED) if state in states), None)
    raise typer.Exit(Exit.OK if worst is None else EXITS[worst])


def _workloads(client: Client, planned: Sequence[Variant]) -> list[WorkloadDocument]:
    """The workloads of the jobs."""
    names = {name for variant in planned if isinstance(name := variant.job.get("workload"), str)}
    if not names:
        raise CommandError(Exit.USAGE, "the job names no workload; `rolecall workloads` lists them")
    return [client.workload(name) for name in names]


def _check_all(client: Client, planned: Sequence[Variant]) -> None:
    """Raise `Refused`, with all refused variants, if the master would refuse any. Creates no job."""
    refused: dict[str, list[str]] = {}
    for variant in planned:
        body = dumps(variant.job).encode()
        try:
            retry_while_unavailable(lambda body=body: client.plan(body))
        except Refused as error:
            # Often one value is invalid, and all combinations with it have the same error.
            refused.setdefault(str(error), []).append(variant.title)
    if refused:
        raise Refused("\n".join(f"{'; '.join(titles)}: {text}" for text, titles in refused.items()))


def _run_all(client: Client, planned: Sequence[Variant], repeat: int, metric: str | None) -> None:
    """Run every variant, and then again, so that a machine that becomes slower or faster affects all of them.

    Raises `ClientError` if the master refuses a job, and `CommandError` if a job succeeds without `metric`.
    """
    rounds = [variant for _ in range(repeat) for variant in planned]
    for index, variant in enumerate(rounds, start=1):
        _submit(client, variant)
        run = variant.runs[-1]
        err.print(f"[bold]\\[{index}/{len(rounds)}][/] {escape(variant.title)}: job {run.id}")
        variant.runs[-1] = run = _follow(client, run.id)
        if metric and run.state is JobState.SUCCEEDED and metric not in metrics(run) | (run.result or {}):
            valid = ", ".join(sorted(metrics(run))) or "none"
            raise CommandError(Exit.USAGE, f"job {run.id} has no metric {metric!r}; valid for --metric: {valid}")


def _submit(client: Client, variant: Variant) -> None:
    # With a key, the retry of a request whose answer was lost doesn't start a second job.
    body, key = dumps(variant.job).encode(), uuid.uuid4().hex
    try:
        variant.runs.append(retry_while_unavailable(lambda: client.submit(body, key)))
    except KeyboardInterrupt:
        # The master may have the job already. With the same key, the response names it, so that it can be cancelled.
        with suppress(ClientError):
            variant.runs.append(client.submit(body, key))
        raise
    except ClientError as error:
        raise type(error)(f"{variant.title}: {error}") from None


def _follow(client: Client, job: str) -> JobDocument:
    """The job's document when it has ended."""
    try:
        return follow_to_end(client, job)[0]
    except UnknownName:
        raise
    except ClientError as error:
        raise type(error)(f"job {job} continues: {error}") from None


def _cancel(client: Client, planned: Sequence[Variant]) -> CommandError:
    """Cancel the job that has not ended, if any."""
    for variant in planned:
        if variant.runs and not variant.runs[-1].state.ended:
            job = variant.runs[-1].id
            try:
                variant.runs[-1] = client.act(job, "cancel")
            except ClientError as error:
                return CommandError(Exit.INTERRUPTED, f"interrupted; job {job} can't be cancelled: {error}")
            verb = "is" if variant.runs[-1].state.ended else "is being"
            return CommandError(Exit.INTERRUPTED, f"interrupted; job {job} {verb} cancelled")
    return CommandError(Exit.INTERRUPTED, "interrupted")


def _print(done: Sequence[Variant], metric: str | None, better: Direction | None, *, as_json: bool) -> None:
    winners = best(done, metric, better) if metric and better else []
    if as_json:
        marks = [place in winners if better else None for place in range(len(done))]
        print_json([_document(variant, is_best) for variant, is_best in zip(done, marks, strict=True)])
        return
    if not done:
        return
    columns = _COLUMNS | ({metric: metric.upper()} if metric and metric not in _COLUMNS else {})
    if metric and better:
        columns[metric] += f" {ARROWS[better]}"
    paths = _varied(done) if out.is_bounded else list(done[0].values)
    given = [short(path).upper() for path in paths]
    headings = [*given, "STATE", "JOB", *columns.values(), "REASON"]
    rows = [_row(one, paths, list(columns), metric if place in winners else None) for place, one in enumerate(done)]
    # The speed is of least use if the sweep is about another metric. `rolecall show` has the reason, too.
    drop = [*(heading for name, heading in columns.items() if name != (metric or SAMPLES_PER_S)), "REASON"]
    shorten = dict.fromkeys(given, _VALUE_CHARS) | {"REASON": _REASON_CHARS}
    print_table([escape(heading) for heading in headings], rows, drop=drop, shorten=shorten)


def _varied(done: Sequence[Variant]) -> list[str]:
    """The paths whose values differ; all if none does."""
    paths = list(done[0].values)
    return [path for path in paths if any(one.values[path] != done[0].values[path] for one in done)] or paths


def _row(variant: Variant, paths: Sequence[str], columns: Sequence[str], best_in: str | None) -> list[str]:
    """The cells of a variant. `best_in` is the metric of which it has the best value."""
    states = [run.state for run in variant.runs]
    counted = [(state, states.count(state)) for state in dict.fromkeys(states)]
    styled = [
        f"[{STYLES.get(state, 'default')}]{f'{count} ' if len(states) > 1 else ''}{state}[/]"
        for state, count in counted
    ]
    reasons = [(run.id, run.reason.splitlines()[0]) for run in variant.runs if run.reason]
    return [
        *(escape(shown(variant.values[path])) for path in paths),
        ", ".join(styled),
        escape(("\n" if out.is_bounded else ", ").join(run.id for run in variant.runs)),
        *(_cell(variant, column, is_best=column == best_in) for column in columns),
        escape("; ".join(why if len(variant.runs) == 1 else f"{job}: {why}" for job, why in reasons)),
    ]


def _cell(variant: Variant, metric: str, *, is_best: bool) -> str:
    spread = variant.spread(metric)
    if spread is None:
        return NOT_FINITE if variant.diverged(metric) else "-"
    mean = number(spread.mean)
    value = mean if spread.deviation is None else f"{mean} ± {float(f'{spread.deviation:.2g}'):,g}"
    return f"[bold green]{value} (best)[/]" if is_best else value


def _document(variant: Variant, is_best: bool | None) -> dict[str, Any]:
    runs = [{"job": run.id, "state": run.state, "reason": run.reason, "metrics": metrics(run)} for run in variant.runs]
    return {"values": variant.values, "best": is_best, "runs": runs}


def _plot(path: Path, found: Chart | None, missing: Sequence[str]) -> None:
    if found is None:
        err.print("no job has a value to plot")
        return
    write_text(path, svg(found))
    err.print(f"plot in {escape(str(path))}")
    if missing:
        err.print(f"not in the plot: {escape('; '.join(missing))}")
