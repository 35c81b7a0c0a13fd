"""How the programs log: one format, and no credentials of URLs, whoever wrote the line."""

import logging
import sys

from rolecall.spec.redaction import redact_text
from rolecall.spec.visible import visible

_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class _Formatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        """The line without control characters. Further lines are indented, so that none looks like a record."""
        record.message = visible(record.message).replace("\n", "\n    ")
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        """The line, and the traceback behind it, without credentials."""
        return visible(redact_text(super().format(record)))


def log_to_stderr(level: str = "INFO") -> None:
    """Let this process log to its standard error; what was set up before is replaced."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # It tells of every call.
