"""`rolecall tokens`: manage access to the cluster."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from pydantic import ByteSize, Field, TypeAdapter, ValidationError
from rich.markup import escape

from rolecall.cli.options import Json, Token, Url, connect, parse_duration
from rolecall.cli.output import age, err, local_time, out, print_json, print_table, time_heading
from rolecall.spec.access import Limits, Scope, TokenDocument, TokenSecret
from rolecall.spec.bounds import MAX_PRIORITY
from rolecall.spec.numbers import size

tokens = typer.Typer(name="tokens", help="Create, list, update, rotate and revoke tokens.", no_args_is_help=True)
_COUNT: TypeAdapter[int] = TypeAdapter(Annotated[int, Field(ge=0)])
_PRIORITY: TypeAdapter[int] = TypeAdapter(Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)])
_VALUES: dict[str, tuple[TypeAdapter[Any], str]] = {
    "max_stored_bytes": (TypeAdapter(ByteSize), "a size such as 50GiB"),
    "max_priority": (_PRIORITY, f"a number from {-MAX_PRIORITY} to {MAX_PRIORITY}"),
}
"""The limits that are not counts."""

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the token, which owns the jobs that it submits.")]
Scopes = Annotated[list[Scope], typer.Option("--scope", help="Scope of the token; repeat for several.")]
NewScopes = Annotated[list[Scope] | None, typer.Option("--scope", help="New scope of the token; repeat for several.")]
Queued = Annotated[
    str | None, typer.Option("--max-queued", metavar="N|none", help="Maximum number of queued or paused jobs.")
]
Slots = Annotated[str | None, typer.Option("--max-slots", metavar="N|none", help="Maximum number of running workers.")]
Stored = Annotated[
    str | None,
    typer.Option(
        "--max-stored-bytes", metavar="SIZE|none", help="Maximum bytes of requests, checkpoints and artifacts: 50GiB."
    ),
]
Priority = Annotated[
    str | None,
    typer.Option(
        "--max-priority", metavar="N|none", help=f"Maximum priority of its jobs: {-MAX_PRIORITY} to {MAX_PRIORITY}."
    ),
]
Expires = Annotated[
    str | None, typer.Option("--expires-in", metavar="DURATION|none", help="Validity of the token, such as 90d or 12h.")
]
Overlap = Annotated[
    str,
    typer.Option("--overlap", metavar="DURATION", help="Time for which the current secret stays valid, such as 24h."),
]


@tokens.command("create")
def create(  # noqa: PLR0917 - the command line is the signature
    name: Name,
    scopes: Scopes,
    max_queued: Queued = None,
    max_slots: Slots = None,
    max_stored_bytes: Stored = None,
    max_priority: Priority = None,
    expires_in: Expires = None,
    json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Create a token and print its secret, which is shown only once."""
    limits = _limits_given(
        max_queued=max_queued, max_slots=max_slots, max_stored_bytes=max_stored_bytes, max_priority=max_priority
    )
    given = _changes(scopes, limits, expires_in, datetime.now(UTC))
    with connect(url, token) as client:
        made = client.create_token({"name": name} | given)
        print_json(client.raw) if json else _print_secret(made)


@tokens.command("list")
def show(json: Json = False, url: Url = None, token: Token = None) -> None:
    """List the tokens."""
    with connect(url, token) as client:
        found = client.tokens()
        if json:
            print_json(client.raw)
            return
    now = datetime.now(UTC)
    headings = ("NAME", "SCOPES", "SECRETS", "LIMITS", time_heading("EXPIRES", out), "LAST USED")
    print_table(headings, [_row(one, now) for one in found], empty="no tokens")


@tokens.command("update")
def update(  # noqa: PLR0917 - the command line is the signature
    name: Name,
    scopes: NewScopes = None,
    max_queued: Queued = None,
    max_slots: Slots = None,
    max_stored_bytes: Stored = None,
    max_priority: Priority = None,
    expires_in: Expires = None,
    json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Change a token's scopes, limits or expiry. Other values stay unchanged; `none` removes a limit."""
    limits = _limits_given(
        max_queued=max_queued, max_slots=max_slots, max_stored_bytes=max_stored_bytes, max_priority=max_priority
    )
    changes = _changes(scopes, limits, expires_in, datetime.now(UTC))
    if not changes:
        raise typer.BadParameter("specify at least one change", param_hint="--scope, --max-…, --expires-in")
    with connect(url, token) as client:
        changed = client.change_token(name, changes)
        print_json(client.raw) if json else out.print(
            f"token {name}: scopes {', '.join(changed.scopes)}; {_limits(changed) or 'no limits'}"
        )


@tokens.command("rotate")
def rotate(name: Name, overlap: Overlap = "0s", json: Json = False, url: Url = None, token: Token = None) -> None:
    """Print a new secret for a token. The current secret expires after the overlap, by default immediately."""
    with connect(url, token) as client:
        made = client.rotate_token(name, parse_duration(overlap, "--overlap").total_seconds())
        print_json(client.raw) if json else _print_secret(made)


@tokens.command("revoke")
def revoke(name: Name, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Revoke a token with all its secrets immediately. Its jobs continue without its limits."""
    with connect(url, token) as client:
        client.revoke_token(name)
    print_json({"revoked": name}) if json else out.print(f"token {name} is revoked")


def _limits_given(**texts: str | None) -> dict[str, int | None]:
    return {field: _limit(field, text) for field, text in texts.items() if text is not None}


def _changes(
    scopes: list[Scope] | None, limits: dict[str, int | None], expires: str | None, now: datetime
) -> dict[str, Any]:
    changes: dict[str, Any] = dict(limits)
    if scopes:
        changes["scopes"] = [scope.value for scope in scopes]
    if expires is not None:
        until = None if expires == "none" else now + parse_duration(expires, "--expires-in")
        changes["expires_at"] = until and until.isoformat()
    return changes


def _limit(field: str, text: str) -> int | None:
    if text == "none":
        return None
    kind, what = _VALUES.get(field, (_COUNT, "an integer from 0"))
    try:
        return int(kind.validate_python(text))
    except ValidationError:
        option = f"--{field.replace('_', '-')}"
        raise typer.BadParameter(f"{text!r} is neither {what} nor `none`", param_hint=option) from None


def _print_secret(made: TokenSecret) -> None:
    err.print(f"secret of token {made.token.name}, shown only once:")
    print(made.secret)


def _row(token: TokenDocument, now: datetime) -> tuple[str, ...]:
    name = f"{token.name} (built in)" if token.built_in else token.name
    expires = local_time(token.expires_at, out, "%Y-%m-%d %H:%M") if token.expires_at else "never"
    used = f"{age(token.last_used_at, now)} ago" if token.last_used_at else "never"
    return escape(name), ", ".join(token.scopes), str(token.secrets), _limits(token), expires, used


def _limits(token: TokenDocument) -> str:
    given = {name: getattr(token, name) for name in Limits.model_fields}
    return ", ".join(
        f"{name} {size(value) if name == 'max_stored_bytes' else value}"
        for name, value in given.items()
        if value is not None
    )
