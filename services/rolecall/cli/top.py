"""`rolecall top`: nodes, slots and jobs, live."""

import time
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from rolecall.cli.declarations import MetricsOf, declared_metrics
from rolecall.cli.follow import retry_while_unavailable
from rolecall.cli.nodes import node_state
from rolecall.cli.options import Json, Token, Url, connect
from rolecall.cli.output import (
    NAME_CHARS,
    Terminal,
    age,
    least_room,
    list_progress,
    list_room,
    make_table,
    out,
    print_json,
    state,
)
from rolecall.client import Client
from rolecall.spec.job import JobOverview
from rolecall.spec.node import NodeDocument
from rolecall.spec.state import JobState
from rolecall.spec.visible import cut

_OPEN = [one.value for one in JobState if not one.ended]
_MAX_JOBS = 200
Once = Annotated[bool, typer.Option("--once", help="Print the table once; the default without a terminal.")]
Interval = Annotated[float, typer.Option("--interval", min=0.5, max=3600, help="Seconds between two updates.")]


def top(once: Once = False, interval: Interval = 2.0, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Show the nodes with their workers, and the jobs that run or wait, until Ctrl-C.

    The compute slots are those of trainers, stages and observers, which keep a core or a GPU busy. Nodes of the roles
    master and parameter-server have more slots, because their workers mostly wait for calls.
    """
    with connect(url, token) as client:
        if json:
            print_json(_documents(client))
            return
        metrics_of = declared_metrics(client)
        if once or not out.is_terminal:
            out.print(_view(client, metrics_of))
            return
        with Live(console=out, screen=True, auto_refresh=False) as live:
            while True:
                live.update(retry_while_unavailable(lambda: _view(client, metrics_of)), refresh=True)
                time.sleep(interval)


def _documents(client: Client) -> dict[str, object]:
    client.nodes()
    nodes = client.raw["nodes"]
    client.jobs(_MAX_JOBS, state=_OPEN)
    return {"nodes": nodes, "jobs": client.raw["jobs"]}


def _view(client: Client, metrics_of: MetricsOf) -> RenderableType:
    return view(out, client.nodes(), client.jobs(_MAX_JOBS, state=_OPEN), metrics_of, datetime.now(UTC))


def view(
    terminal: Terminal, nodes: list[NodeDocument], jobs: list[JobOverview], metrics_of: MetricsOf, now: datetime
) -> RenderableType:
    """The nodes with their workers, and the jobs that have not ended, oldest first in each state."""
    alive = [node for node in nodes if node.alive]
    computing = [node for node in alive if node.spec.role.computes]
    used, slots = sum(len(node.workers) for node in computing), sum(node.spec.slots for node in computing)
    queued = sum(job.state is JobState.QUEUED for job in jobs)
    holding = sum(job.state.holds_slots for job in jobs)
    title = (
        f"nodes: {len(alive)} of {len(nodes)} alive   compute slots: {used} of {slots} in use   "
        f"jobs: {holding} running, {queued} queued"
    )
    order = {state: place for place, state in enumerate((JobState.RUNNING, JobState.STOPPING, JobState.PLACED))}
    jobs = sorted(jobs, key=lambda job: (order.get(job.state, len(order)), job.created_at))
    return Group(
        terminal.render_str(f"[bold]{title}[/]"),
        "",
        _node_table(terminal, nodes) if nodes else "no node has registered",
        "",
        _job_table(terminal, jobs, metrics_of, now) if jobs else "no job runs or waits",
    )


def _node_table(terminal: Terminal, nodes: list[NodeDocument]) -> Table:
    rows = [
        (
            escape(node.spec.name),
            f"{len(node.workers)}/{node.spec.slots}",
            node_state(node),
            escape(", ".join(f"{one.role}-{one.role_rank} of {one.job or 'another user'}" for one in node.workers)),
        )
        for node in nodes
    ]
    return make_table(("NODE", "SLOTS", "STATE", "WORKERS"), rows, terminal)


def _job_table(terminal: Terminal, jobs: list[JobOverview], metrics_of: MetricsOf, now: datetime) -> Table:
    room = list_room(terminal, jobs)
    shown = [list_progress(job, metrics_of(job.workload), room) for job in jobs]
    rows = [
        (
            escape(job.id),
            escape(cut(job.name, NAME_CHARS) if terminal.is_bounded else job.name),
            state(job),
            age(job.created_at, now),
            escape(text),
        )
        for job, text in zip(jobs, shown, strict=True)
    ]
    headings = ("JOB", "NAME", "STATE", "AGE", "PROGRESS")
    return make_table(headings, rows, terminal, drop=("NAME", "AGE"), shorten={"PROGRESS": least_room(jobs, shown)})
