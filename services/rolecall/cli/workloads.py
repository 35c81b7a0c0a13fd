"""`rolecall workloads`: list the installed workloads and their parameters."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.markup import escape

from rolecall.cli.options import Json, Token, Url, connect
from rolecall.cli.output import out, print_json, print_table
from rolecall.spec.api import WorkloadDocument

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show this workload's roles and parameters.")]


def workloads(name: Name = None, json: Json = False, url: Url = None, token: Token = None) -> None:
    """List the workloads, or describe one of them."""
    with connect(url, token) as client:
        found = [client.workload(name)] if name else client.workloads()
        if json:
            print_json(client.raw)
            return
    if name:
        _describe(found[0])
    else:
        print_table(("NAME", "SUMMARY"), [(one.name, escape(one.summary)) for one in found])


def _describe(workload: WorkloadDocument) -> None:
    out.print(f"[bold]{workload.name}[/]: {escape(workload.summary)}\n")
    limits = [(role, str(c.default), str(c.least), str(c.most)) for role, c in workload.roles.items()]
    print_table(("ROLE", "DEFAULT", "LEAST", "MOST"), limits)
    out.print()
    print_table(("PARAMETER", "DEFAULT", "MEANING"), _parameters(workload.params))


def _parameters(schema: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        default = "required" if name in required else escape(str(field.get("default", "")))
        yield name, default, escape(" ".join(str(field.get("description", "")).split()))
