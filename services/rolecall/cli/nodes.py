"""`rolecall nodes`: list nodes."""

from rich.markup import escape

from rolecall.cli.options import Json, Token, Url, connect
from rolecall.cli.output import out, print_json, print_table
from rolecall.spec.finding import Level
from rolecall.spec.node import NodeDocument

_DROPPED = ("VERSION", "CORES", "ADDRESS", "HEARTBEAT", "ROLE")
"""The columns that a narrow terminal omits, the first one first: a node whose version is wrong has a finding."""


def nodes(json: Json = False, url: Url = None, token: Token = None) -> None:
    """List the cluster's nodes with their roles and slots, followed by their problems and remedies."""
    with connect(url, token) as client:
        found = client.nodes()
        if json:
            print_json(client.raw)
            return
    headings = ("NAME", "ROLE", "SLOTS", "STATE", "HEARTBEAT", "ADDRESS", "CORES", "GPUS", "VERSION")
    print_table(headings, [_row(node) for node in found], drop=_DROPPED, empty="no node has registered")
    for node in found:
        for finding in node.findings:
            if finding.level is not Level.OK:
                style = "red" if finding.level is Level.ERROR else "yellow"
                remedy = f"; {finding.remedy}" if finding.remedy else ""
                text = escape(f"{finding.message}{remedy}")
                out.print(f"[{style}]{finding.level}[/] {node.spec.name}: {text}")


def _row(node: NodeDocument) -> tuple[str, ...]:
    spec, machine = node.spec, node.spec.machine
    beat = f"{node.heartbeat_age_s:.1f} s ago"
    shared = f" × {machine.workers_per_gpu} workers" if machine.gpus and machine.workers_per_gpu > 1 else ""
    sizes = str(machine.cores), f"{len(machine.gpus)}{shared}"
    return spec.name, spec.role, str(spec.slots), node_state(node), beat, spec.address, *sizes, spec.version


def node_state(node: NodeDocument) -> str:
    if not node.alive:
        return "[red]lost[/]"
    if node.draining:
        return "[yellow]draining[/]"
    return "[green]alive[/]" if node.obstacle is None else "[red]unfit[/]"
