"""`rolecall nodes`: list nodes."""

from rolecall.cli.options import Json, Token, Url, connect
from rolecall.cli.output import print_json, print_table
from rolecall.spec.node import NodeState


def nodes(json: Json = False, url: Url = None, token: Token = None) -> None:
    """List the cluster's nodes with their roles and slots."""
    with connect(url, token) as client:
        found = client.nodes()
        if json:
            print_json(client.raw)
            return
    headings = ("NAME", "ROLE", "SLOTS", "STATE", "HEARTBEAT", "ADDRESS", "CORES", "GPUS", "VERSION")
    print_table(headings, [_row(node) for node in found])


def _row(node: NodeState) -> tuple[str, ...]:
    spec, machine = node.spec, node.spec.machine
    state = "[red]lost[/]" if not node.alive else "[yellow]draining[/]" if node.draining else "[green]alive[/]"
    beat = f"{node.heartbeat_age_s:.1f} s ago"
    sizes = str(machine.cores), str(len(machine.gpus))
    return spec.name, spec.role, str(spec.slots), state, beat, spec.address, *sizes, spec.version
