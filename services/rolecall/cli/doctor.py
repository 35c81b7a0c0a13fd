"""`rolecall doctor`: examine a cluster, from this shell to the connections between all pairs of nodes."""

import socket
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from json import dumps
from typing import Annotated
from urllib.parse import urlsplit

import typer
from pydantic import TypeAdapter
from rich.markup import escape

from rolecall import __version__
from rolecall.cli.exits import Exit
from rolecall.cli.options import CLEAR_TEXT, CLEAR_TEXT_REMEDY, Token, Url, find_cluster
from rolecall.cli.output import err, out, print_json, print_table
from rolecall.client import Client, ClientError, Unauthorized, UnknownName, Unreachable
from rolecall.client.connection import Connection
from rolecall.spec.api import Volume
from rolecall.spec.finding import Level, NodeFinding
from rolecall.spec.job import JobDocument
from rolecall.spec.node import NodeDocument
from rolecall.spec.numbers import size
from rolecall.spec.state import JobState

WAIT_S = 120.0
"""Seconds after which the preflight job is cancelled."""
_POLL_S = 0.2
_MAX_NAMES = 2
_JOB_NAME = "rolecall doctor"
_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "red"}
_FINDINGS: TypeAdapter[list[NodeFinding]] = TypeAdapter(list[NodeFinding])
_HERE, _MASTER = "this shell", "the master"
_ERRORS: dict[type[ClientError], tuple[str, str]] = {
    Unreachable: (
        "master",
        "start the master (here: `rolecall local`), allow this machine to reach its port, or set --url or ROLECALL_URL",
    ),
    Unauthorized: ("token", "set ROLECALL_TOKEN or pass --token, with a token of this cluster"),
}
_STORAGE_REMEDY = "check the master's database (ROLECALL_DATABASE_URL) and the master's log"

Names = Annotated[list[str] | None, typer.Argument(metavar="NODE", help="Nodes to examine; by default all.")]
All = Annotated[bool, typer.Option("--all", "-a", help="Show each finding, also those without problems.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print all findings as JSON.")]


def doctor(names: Names = None, every: All = False, json: AsJson = False, url: Url = None, token: Token = None) -> None:
    """Examine the cluster, and show a remedy for each problem.

    Checks the connection to the master, collects the findings of every node, and runs a job of the workload
    `preflight`, which tests and measures the connections between the nodes. Other jobs continue. Shows the problems,
    and the names of the checks that found none. The exit code is 1 if there is an error, and 0 otherwise.
    """
    findings: list[NodeFinding] = []
    try:
        for finding in _findings(url, token, names or []):
            findings.append(finding)  # One at a time, so that findings before an error are kept.
    except ClientError as error:
        check, remedy = _ERRORS.get(type(error), ("master", "check the master's log"))
        findings.append(_finding(_HERE, check, Level.ERROR, _headline(error), remedy))
    if json:
        print_json([finding.model_dump(mode="json") for finding in findings])
    else:
        _print(findings, every=every)
    failed = any(finding.level is Level.ERROR for finding in findings)
    raise typer.Exit(Exit.FAILED if failed else Exit.OK)


def _findings(url: str | None, token: str | None, names: Sequence[str]) -> Iterator[NodeFinding]:
    """All findings. Each check follows those that it depends on. A `ClientError` ends them."""
    connection = find_cluster(url, token)
    yield _name_resolution(connection)
    yield _encryption(connection)
    with Client(connection) as client:
        client.healthz()
        yield _ok(_HERE, "master", f"the master answers at {client.url}")
        try:
            yield from _cluster_findings(client, names)
        except Unreachable as error:
            if not _is_alive(client):
                raise
            yield _finding(_MASTER, "master", Level.ERROR, _headline(error), _STORAGE_REMEDY)


def _cluster_findings(client: Client, names: Sequence[str]) -> Iterator[NodeFinding]:
    ready = client.readyz()
    yield _ok(_MASTER, "token", "the master accepts the token, and its database answers")
    if ready.volume is not None:
        yield _disk(ready.volume)
    yield _version(client.version())
    yield from _settings_findings(client)
    nodes = client.nodes()
    yield from _node_findings(nodes, names)
    available = [node.spec.name for node in nodes if node.alive and not node.draining]
    if chosen := [name for name in available if not names or name in names]:
        yield from _run_preflight(client, chosen)


def _is_alive(client: Client) -> bool:
    """Return whether the master answers `/healthz`, so that port and URL are right."""
    try:
        client.healthz()
    except ClientError:
        return False
    return True


def _name_resolution(connection: Connection) -> NodeFinding:
    host = urlsplit(connection.url).hostname or ""
    try:
        address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        remedy = "use the master's IP address, or correct --url or ROLECALL_URL"
        return _finding(_HERE, "name", Level.ERROR, f"{host!r} in {connection.url}: {error.strerror}", remedy)
    return _ok(_HERE, "name", f"{host} resolves to {address}")


def _encryption(connection: Connection) -> NodeFinding:
    if connection.is_exposed():
        return _finding(_HERE, "tls", Level.WARNING, CLEAR_TEXT.format(url=connection.url), CLEAR_TEXT_REMEDY)
    return _ok(_HERE, "tls", f"calls to {connection.url} stay on this machine or are encrypted")


def _version(master_version: str) -> NodeFinding:
    if master_version == __version__:
        return _ok(_MASTER, "version", f"the master and this command are Rolecall {master_version}")
    versions = f"the master is Rolecall {master_version}, this command is Rolecall {__version__}"
    return _finding(_HERE, "version", Level.WARNING, versions, f"install Rolecall {master_version} on this machine")


def _disk(volume: Volume) -> NodeFinding:
    """The finding about the free space of the master's data folder above its reserve."""
    space = f"the data folder has {size(volume.free)} of {size(volume.total)} free, {size(volume.reserve)} are reserved"
    remedy = (
        "delete old jobs (rolecall prune, ROLECALL_KEEP_DAYS), or move the data folder to a larger disk "
        "(ROLECALL_DATA; --data of `rolecall local`)"
    )
    if volume.free < volume.reserve:
        return _finding(_MASTER, "disk", Level.ERROR, f"{space}: the master refuses logs and uploads", remedy)
    if volume.free < 2 * volume.reserve:
        return _finding(_MASTER, "disk", Level.WARNING, space, remedy)
    return _ok(_MASTER, "disk", space)


def _settings_findings(client: Client) -> Iterator[NodeFinding]:
    """The master's findings about weak settings; for admins only, and not available from an older master."""
    try:
        found = client.findings()
    except Unauthorized:
        message = "the master's settings were not examined, because only admins can see them"
        yield _finding(_MASTER, "settings", Level.WARNING, message, "use a token with the scope admin")
        return
    except UnknownName:
        return
    for finding in found:
        yield NodeFinding(nodes=(_MASTER,), **finding.model_dump())


def _node_findings(nodes: Sequence[NodeDocument], names: Sequence[str]) -> Iterator[NodeFinding]:
    """Findings from the list of nodes."""
    known = {node.spec.name: node for node in nodes}
    if not known:
        remedy = "start nodes: run `rolecall local`, or containers with MASTER_ADDR and this master's node token"
        yield _finding(_MASTER, "nodes", Level.ERROR, "no node has registered", remedy)
    for name in names:
        if name not in known:
            unknown = f"no node has this name; known nodes: {', '.join(sorted(known)) or 'none'}"
            yield _finding(name, "nodes", Level.ERROR, unknown, "correct the name; `rolecall nodes` lists all nodes")
    for name, node in known.items():
        if not names or name in names:
            yield _liveness(node)
            yield from (NodeFinding(nodes=(name,), **finding.model_dump()) for finding in node.findings)


def _liveness(node: NodeDocument) -> NodeFinding:
    name, age = node.spec.name, f"last heartbeat {node.heartbeat_age_s:.1f} s ago"
    if not node.alive:
        remedy = "check its container or machine, and its log; the node reconnects automatically"
        return _finding(name, "alive", Level.ERROR, f"the node is lost, {age}", remedy)
    if node.draining:
        remedy = "none if intended; otherwise start the node again"
        return _finding(name, "alive", Level.WARNING, f"the node is draining and accepts no new workers, {age}", remedy)
    return _ok(name, "alive", age)


def _run_preflight(client: Client, nodes: Sequence[str]) -> Iterator[NodeFinding]:
    """Check the network with a `preflight` job, which Ctrl-C or the timeout cancels.

    The job stays only if someone needs it: for its log, or because the nodes' findings are read from its result.
    """
    request = {"workload": "preflight", "name": _JOB_NAME, "params": {"nodes": nodes}, "max_restarts": 0}
    body, key = dumps(request).encode(), uuid.uuid4().hex
    try:
        job = client.submit(body, key)
        err.print(f"[dim]testing the network between {len(nodes)} node{'s' * (len(nodes) != 1)}: job {job.id}[/]")
        document = _wait_until_ended(client, job.id)
    except KeyboardInterrupt:
        with suppress(ClientError):
            # The master may have the job although its answer was not awaited. With the same key, it names this job.
            job = client.submit(body, key)
            client.delete(job.id, force=True)
            err.print(f"job {job.id} is cancelled and deleted")
        raise
    if document.state is JobState.SUCCEEDED and document.result:
        _delete_replaced(client, document)
        yield from _FINDINGS.validate_python(document.result.get("findings", ()))
        return
    if document.attempts:
        remedy = f"see its log: rolecall logs {job.id}; then delete it: rolecall delete {job.id}"
    else:
        with suppress(ClientError):
            client.delete(job.id, force=True)
        remedy = "`rolecall nodes` shows the state of the nodes; then run `rolecall doctor` again"
    yield NodeFinding(
        nodes=tuple(nodes), check="preflight", level=Level.ERROR, message=_outcome(document), remedy=remedy
    )


def _delete_replaced(client: Client, newest: JobDocument) -> None:
    """Delete the token's older jobs of this command whose nodes `newest` has examined again."""
    # They disturb nobody but the reader of a list of jobs, so that an error is none of this command.
    with suppress(ClientError):
        for one in client.jobs(
            workload=newest.workload,
            name=_JOB_NAME,
            owner=newest.owner,
            state=JobState.SUCCEEDED.value,
            created_before=newest.created_at.isoformat(),
        ):
            # The filter also finds longer names. Without nodes, the job has tested all that there were.
            nodes = set(client.job(one.id).params["nodes"])
            if one.name == _JOB_NAME and nodes and nodes <= set(newest.params["nodes"]):
                client.delete(one.id, force=False)


def _wait_until_ended(client: Client, job: str) -> JobDocument:
    """Wait for the end of the job, and cancel it after the timeout. Returns its last document."""
    deadline, seen = time.monotonic() + WAIT_S, 0
    while True:
        # Get the document before the events: when it says that the job has ended, no events can follow.
        document = client.job(job)
        for event in client.events(job, seen):
            err.print(f"[dim]{event.at.astimezone():%H:%M:%S}[/] {escape(event.message)}")
            seen = event.id
        if document.state.ended:
            return document
        if time.monotonic() > deadline:
            client.act(job, "cancel")
            return document
        time.sleep(_POLL_S)


def _outcome(document: JobDocument) -> str:
    if not document.state.ended:
        reason = f": {document.waiting_for}" if document.waiting_for else ""
        return f"the preflight job did not end within {WAIT_S:.0f} s{reason}"
    if document.state is JobState.CANCELLED:
        return f"another user cancelled the preflight job {document.id}"
    return f"the preflight job {document.state}: {(document.reason or '').partition(chr(10))[0]}"


def _headline(error: ClientError) -> str:
    """The message without its remedy, because the finding has one of its own."""
    return str(error).partition(";")[0].replace("\n", " ")


def _print(findings: Sequence[NodeFinding], *, every: bool) -> None:
    shown = findings if every else [finding for finding in findings if finding.level is not Level.OK]
    rows = [(_level(finding.level), _text(finding)) for finding in shown]
    if not every:
        found = passed(findings).items()
        rows += [(_level(Level.OK), escape(f"{where}: {', '.join(checks)}")) for where, checks in found]
    print_table(("LEVEL", "FINDING"), rows)
    levels = Counter(finding.level for finding in findings)
    hint = "" if every else "; --all shows each"
    out.print(f"errors: {levels[Level.ERROR]}, warnings: {levels[Level.WARNING]}, ok: {levels[Level.OK]}{hint}")


def passed(findings: Sequence[NodeFinding]) -> Mapping[str, Sequence[str]]:
    """The checks without problems, by their subject: this shell, the master, and the number of nodes or pairs."""
    subjects: dict[tuple[str, str], set[str]] = {}
    for finding in findings:
        if finding.level is Level.OK:
            subjects.setdefault((finding.check, _kind(finding)), set()).add(_where(finding))
    found: dict[str, list[str]] = {}
    for (check, kind), names in subjects.items():
        found.setdefault(next(iter(names)) if len(names) == 1 else f"{len(names)} {kind}", []).append(check)
    return found


def _kind(finding: NodeFinding) -> str:
    """The kind of subjects that are counted together."""
    if finding.nodes[0] in {_HERE, _MASTER}:
        return finding.nodes[0]
    return {1: "nodes", 2: "pairs"}.get(len(finding.nodes), "groups")


def _where(finding: NodeFinding) -> str:
    return f"{len(finding.nodes)} nodes" if len(finding.nodes) > _MAX_NAMES else " - ".join(finding.nodes)


def _text(finding: NodeFinding) -> str:
    """Subject, check, observation and remedy. Except on a terminal, they are one line."""
    parts = [f"{_where(finding)}, {finding.check}: {finding.message}"]
    if finding.remedy:
        parts.append(f"remedy: {finding.remedy}")
    return escape(("\n" if out.is_bounded else "; ").join(parts))


def _level(level: Level) -> str:
    return f"[{_STYLES[level]}]{level}[/]"


def _ok(where: str, check: str, message: str) -> NodeFinding:
    return _finding(where, check, Level.OK, message)


def _finding(where: str, check: str, level: Level, message: str, remedy: str = "") -> NodeFinding:
    return NodeFinding(nodes=(where,), check=check, level=level, message=message, remedy=remedy)
