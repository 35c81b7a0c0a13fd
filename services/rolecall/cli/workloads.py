"""`rolecall workloads`: list the installed workloads, and describe their roles and parameters."""

from collections.abc import Iterable
from typing import Annotated

import typer
from rich.markup import escape
from rich.tree import Tree

from rolecall.cli.completion import workload_names
from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.options import Json, Token, Url, connect
from rolecall.cli.output import err, out, print_json, print_table
from rolecall.cli.param_tree import ParamEntry, param_tree
from rolecall.spec.api import WorkloadDocument, WorkloadList

Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="Show this workload's roles and parameters.", autocompletion=workload_names),
]
Example = Annotated[bool, typer.Option("--example", help="Print an example job, for `rolecall submit -`.")]
Schema = Annotated[bool, typer.Option("--schema", help="Print the JSON schema of the parameters.")]


def workloads(  # noqa: PLR0917 - the command line is the signature
    name: Name = None,
    example: Example = False,
    schema: Schema = False,
    json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """List the workloads, or describe one of them with all its parameters."""
    if (example or schema) and not name:
        raise typer.BadParameter("name the workload", param_hint="--example, --schema")
    if example and schema:
        raise typer.BadParameter("use one of them", param_hint="--example, --schema")
    with connect(url, token) as client:
        found = client.workload(name) if name else client.call(WorkloadList, "GET", "/workloads")
        if json and not (example or schema):
            print_json(client.raw)
            return
    if isinstance(found, WorkloadList):
        rows = [(one.name, escape(one.summary)) for one in found.workloads]
        print_table(("NAME", "SUMMARY"), rows, empty="no workload is installed")
        for plug_in, why in found.broken.items():
            err.print(f"[yellow]warning:[/] the workload {escape(plug_in)} could not be loaded: {escape(why)}")
    elif example:
        if found.example is None:
            raise CommandError(
                Exit.NOT_FOUND, f"{found.name} has no example; `rolecall workloads {found.name}` lists its parameters"
            )
        print_json(found.example)
    elif schema:
        print_json(found.params)
    else:
        _describe(found)


def _describe(workload: WorkloadDocument) -> None:
    out.print(f"[bold]{escape(workload.name)}[/]: {escape(workload.summary)}\n", soft_wrap=False)
    limits = [(role, str(c.default), str(c.least), str(c.most)) for role, c in workload.roles.items()]
    print_table(("ROLE", "DEFAULT", "LEAST", "MOST"), limits)
    tree = Tree("\n[bold]params[/]", guide_style="dim")
    _grow(tree, param_tree(workload.params))
    out.print(tree, soft_wrap=False)
    if workload.example:
        out.print(f"\nExample job: rolecall workloads {workload.name} --example")


def _grow(tree: Tree, entries: Iterable[ParamEntry]) -> None:
    for entry in entries:
        _grow(tree.add(_label(entry)), entry.inner)


def _label(entry: ParamEntry) -> str:
    if not entry.name:
        return f"[italic]{escape(entry.type)}[/]" + (f"\n{escape(entry.meaning)}" if entry.meaning else "")
    default = "required" if entry.default == "required" else f"default {entry.default}"
    facts = escape(entry.type) + ("" if entry.default is None else f"[dim], {escape(default)}[/]")
    return f"[bold]{escape(entry.name)}[/]  [cyan]{facts}[/]" + (f"\n{escape(entry.meaning)}" if entry.meaning else "")
