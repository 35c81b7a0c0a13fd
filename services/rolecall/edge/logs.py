"""How the programs log: one format, with fields to search by, and no credentials of URLs, whoever wrote the line."""

import json
import logging
import sys
from typing import Literal

from rolecall.spec.redaction import redact_text
from rolecall.spec.visible import visible

LogFormat = Literal["text", "json"]

_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_FIELDS = ("event", "job", "attempt", "rank", "node")


def about(
    event: str, *, job: str | None = None, attempt: int | None = None, rank: int | None = None, node: str | None = None
) -> dict[str, object]:
    """What a record is about, as the `extra` of a log call. `event` names what happened and never changes."""
    given = {"event": event, "job": job, "attempt": attempt, "rank": rank, "node": node}
    return {name: value for name, value in given.items() if value is not None}


class _TextFormatter(logging.Formatter):
    """One line for people, with the fields at its end."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        """The line without control characters. Further lines are indented, so that none looks like a record."""
        record.message = visible(record.message).replace("\n", "\n    ")
        fields = " ".join(f"{name}={_one_line(value)}" for name, value in _fields(record).items())
        return super().formatMessage(record) + (f" [{fields}]" if fields else "")

    def format(self, record: logging.LogRecord) -> str:
        """The line, and the traceback behind it, without credentials."""
        return visible(redact_text(super().format(record)))


class _JsonFormatter(logging.Formatter):
    """One JSON object a line, for programs that collect logs."""

    def format(self, record: logging.LogRecord) -> str:
        """The record without credentials."""
        line: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname,
            "logger": record.name,
            "message": redact_text(record.getMessage()),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = redact_text(self.formatException(record.exc_info))
        return json.dumps(line)


def _one_line(value: object) -> str:
    return visible(str(value)).replace("\n", "\\n")


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: record.__dict__[name] for name in _FIELDS if name in record.__dict__}


class _Stamp(logging.Filter):
    """Adds fields to each record that has not its own."""

    def __init__(self, fields: dict[str, object]) -> None:
        super().__init__()
        self._fields = fields

    def filter(self, record: logging.LogRecord) -> bool:
        record.__dict__.update(self._fields | record.__dict__)
        return True


def stamp_records(*, job: str, attempt: int, rank: int) -> None:
    """Give these fields to all records of this process, whichever library logs them. Follows `log_to_stderr`."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(_Stamp({"job": job, "attempt": attempt, "rank": rank}))


def log_to_stderr(level: str = "INFO", form: LogFormat = "text") -> None:
    """Let this process log to its standard error; what was set up before is replaced."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_TextFormatter(_FORMAT) if form == "text" else _JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # It tells of every call.
