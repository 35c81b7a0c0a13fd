"""Variables that hold secrets.

Each secret may come from a variable or, with `_FILE` appended to its name, from a file.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from rolecall.spec.errors import SettingsError

SECRETS = ("ROLECALL_TOKEN", "ROLECALL_NODE_TOKEN", "ROLECALL_METRICS_TOKEN", "ROLECALL_DATABASE_URL")
"""Variables that hold secrets, each of which may also be read from a file. No worker gets to see them."""

_SECRET_FILES = (
    *(f"{name}_FILE" for name in SECRETS),
    "ROLECALL_TLS_KEY",
    "OTEL_EXPORTER_OTLP_CLIENT_KEY",
    "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
    "MLFLOW_TRACKING_CLIENT_CERT_PATH",
)


def secrets_from_files() -> dict[str, str]:
    """The secrets of the variables that name a file. Raises `SettingsError` if a file can't be read."""
    found: dict[str, str] = {}
    for name in SECRETS:
        if path := os.environ.get(f"{name}_FILE"):
            try:
                found[name] = Path(path).read_text(encoding="utf-8").strip()
            except UnicodeDecodeError:
                raise SettingsError(f"{name}_FILE={path} is not a text file; it must contain only the secret") from None
            except OSError as error:
                raise SettingsError(f"{name}_FILE={path}: {error.strerror}; mount the file or set {name}") from None
    return found


def read_secret(variable: str) -> str:
    """The current secret from its file or variable; empty if neither is set."""
    return secrets_from_files().get(variable) or os.environ.get(variable, "")


def secret_files(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """The files with secrets that `environment` names."""
    return tuple(Path(path) for name in _SECRET_FILES if (path := environment.get(name)))
