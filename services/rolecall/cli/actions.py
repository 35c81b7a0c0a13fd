"""`rolecall cancel`, `pause`, `resume` and `retry`: one request each, and the state that follows from it."""

from rolecall.cli.options import JobId, Json, Token, Url, connect
from rolecall.cli.output import out, print_json, state


def cancel(job: JobId, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Cancel a job in whatever state it is; its workers are asked to leave, then killed."""
    _act(job, "cancel", json, url, token)


def pause(job: JobId, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Stop a job behind a checkpoint and free its slots; `rolecall resume` goes on from there."""
    _act(job, "pause", json, url, token)


def resume(job: JobId, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Queue a paused job again; it goes on from its newest checkpoint."""
    _act(job, "resume", json, url, token)


def retry(job: JobId, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Queue a failed or cancelled job again; it goes on from its newest checkpoint."""
    _act(job, "retry", json, url, token)


def _act(job: str, action: str, as_json: bool, url: str | None, token: str | None) -> None:
    with connect(url, token) as client:
        document = client.act(job, action)
        if as_json:
            print_json(client.raw)
        else:
            out.print(f"job {document.id} is {state(document)}")
