"""The log format of the programs: searchable fields, and no credentials, not even in lines of libraries."""

import json
import logging
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from rolecall.spec.redaction import redact_text
from rolecall.spec.visible import one_line, visible

LogFormat = Literal["text", "json"]

_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_FIELDS = ("event", "job", "attempt", "rank", "node")
_JSON_BEGIN = '{"time": "'
_JSON_PARTS = ("time", "level", "logger", "message")


def about(
    event: str, *, job: str | None = None, attempt: int | None = None, rank: int | None = None, node: str | None = None
) -> dict[str, object]:
    """The searchable fields of a record, for the `extra` of a log call. The name of an `event` never changes."""
    fields = {"event": event, "job": job, "attempt": attempt, "rank": rank, "node": node}
    return {name: value for name, value in fields.items() if value is not None}


class _TextFormatter(logging.Formatter):
    """Formats a record as text: the message with the fields, then the traceback."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - the library's name
        """The local time with its offset from UTC, so that readers elsewhere can compare it."""
        return datetime.fromtimestamp(record.created).astimezone().isoformat(" ", "milliseconds")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        return super().formatMessage(record) + _suffix(_fields(record))

    def format(self, record: logging.LogRecord) -> str:
        """Escape control characters, and indent all lines but the first so that none looks like a separate record."""
        return _indented(redact_text(super().format(record)))


class _JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON, for log collectors."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": redact_text(record.getMessage()),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = redact_text(self.formatException(record.exc_info))
        return json.dumps(line, default=str)


def json_as_text(line: str) -> str | None:
    """The text format of a record in the JSON format; None if the line is no such record."""
    if not line.startswith(_JSON_BEGIN):
        return None
    try:
        fields: dict[str, object] = json.loads(line)
    except (ValueError, RecursionError):  # A part of a long line, or JSON that a job printed.
        return None
    parts = [fields.pop(name, None) for name in _JSON_PARTS]
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) < len(_JSON_PARTS):
        return None
    traceback = fields.pop("traceback", "")
    head = " ".join((texts[0].replace("T", " ", 1), *texts[1:])) + _suffix(fields)
    return _indented(f"{head}\n{traceback}" if traceback else head)


def _suffix(fields: Mapping[str, object]) -> str:
    """The fields at the end of a message, if there are any."""
    shown = " ".join(f"{name}={one_line(str(value))}" for name, value in fields.items())
    return f" [{shown}]" if shown else ""


def _indented(text: str) -> str:
    return visible(text).replace("\n", "\n    ")


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: record.__dict__[name] for name in _FIELDS if name in record.__dict__}


_MAX_SUBJECTS = 1000


class OncePerReason:
    """Decides whether to log a repeated failure: once per reason, until it is over.

    One instance can track several subjects, such as the steps of a loop. A loop that retries calls `is_new` after each
    failure and `end` after each success. Subjects that have gone never end, so only the latest are remembered.
    """

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def is_new(self, reason: str, subject: str = "") -> bool:
        """Record the reason of the current failure; return whether the previous one was different or there was none."""
        is_new = self._reasons.pop(subject, None) != reason
        self._reasons[subject] = reason
        if len(self._reasons) > _MAX_SUBJECTS:
            del self._reasons[next(iter(self._reasons))]
        return is_new

    def end(self, subject: str = "") -> bool:
        """Record that there is no failure any more; return whether there was one."""
        return self._reasons.pop(subject, None) is not None


class _Stamp(logging.Filter):
    """Adds default fields to each record."""

    def __init__(self, fields: dict[str, object]) -> None:
        super().__init__()
        self._fields = fields

    def filter(self, record: logging.LogRecord) -> bool:
        record.__dict__.update(self._fields | record.__dict__)
        return True


def stamp_records(*, job: str, attempt: int, rank: int) -> None:
    """Give these fields to all records of this process, whichever library logs them. Call it after `log_to_stderr`."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(_Stamp({"job": job, "attempt": attempt, "rank": rank}))


def log_to_stderr(level: str = "INFO", form: LogFormat = "text") -> None:
    """Configure this process to log to stderr. Replaces the previous configuration."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_TextFormatter(_FORMAT) if form == "text" else _JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # At INFO, httpx logs every request.
