"""`rolecall cancel`, `pause`, `resume` and `retry`: one request each, and the resulting state."""

from rich.markup import escape

from rolecall.cli.options import JobId, Json, Token, Url, connect
from rolecall.cli.output import out, print_json, state
from rolecall.spec.state import JobState


def cancel(job: JobId, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Cancel a job in any state. Its workers are asked to stop, and are killed if they don't."""
    _act(job, "cancel", json, url, token)


def pause(job: JobId, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Stop a job after a checkpoint and free its slots. `rolecall resume` continues from that checkpoint."""
    _act(job, "pause", json, url, token)


def resume(job: JobId, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Queue a paused job again, or one that is still being paused. It resumes from its newest checkpoint."""
    _act(job, "resume", json, url, token)


def retry(job: JobId, json: Json = False, url: Url = None, token: Token = None) -> None:
    """Queue a failed or cancelled job again. It resumes from its newest checkpoint."""
    _act(job, "retry", json, url, token)


def _act(job: str, action: str, as_json: bool, url: str | None, token: str | None) -> None:
    with connect(url, token) as client:
        document = client.act(job, action)
        if as_json:
            print_json(client.raw)
        else:
            why = f" ({escape(document.reason)})" if document.state is JobState.STOPPING and document.reason else ""
            out.print(f"job {document.id} is {state(document)}{why}")
