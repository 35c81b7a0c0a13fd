"""How the programs log: one format, and no credentials of URLs, whoever wrote the line."""

import logging
import sys

from rolecall.spec.redaction import redact_text

_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """The line, and the traceback behind it, without credentials."""
        return redact_text(super().format(record))


def log_to_stderr(level: str = "INFO") -> None:
    """Let this process log to its standard error; what was set up before is replaced."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
