"""The settings that the control program and a node share."""

import hmac
from itertools import combinations
from typing import Annotated, Literal

from pydantic import Field, SecretStr, model_validator

from rolecall.settings.environment import SharedSettings


class ProgramSettings(SharedSettings):
    """Settings of the control program and of a node's daemon."""

    node_token: Annotated[SecretStr, Field(validation_alias="ROLECALL_NODE_TOKEN", min_length=16)]
    """The token with which nodes authenticate to the master; in the master, the built-in token `node`."""
    metrics_token: Annotated[SecretStr | None, Field(validation_alias="ROLECALL_METRICS_TOKEN", min_length=16)] = None
    """The token for Prometheus, which gives access only to `GET /metrics` of master and nodes."""
    host: Annotated[str, Field(validation_alias="ROLECALL_HOST")] = "0.0.0.0"  # noqa: S104 - a container's port is its interface
    """Address that the program's HTTP server binds."""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Field(validation_alias="ROLECALL_LOG_LEVEL")] = (
        "info"
    )
    """Log level: debug, info, warning or error."""
    log_bytes: Annotated[int, Field(validation_alias="ROLECALL_LOG_BYTES", ge=1 << 20)] = 64 << 20
    """Bytes kept of each worker's log: one half from its beginning, one from its end; the rest is dropped."""
    stop_grace_s: Annotated[float, Field(validation_alias="ROLECALL_STOP_GRACE_S", ge=0)] = 30.0
    """Seconds that workers have to stop before they are killed; the master waits for them equally long."""

    @model_validator(mode="after")
    def _refuse_equal_tokens(self) -> "ProgramSettings":
        given = {name: secret.get_secret_value() for name, secret in self.tokens.items()}
        for (one, value), (other, same) in combinations(given.items(), 2):
            if hmac.compare_digest(value.encode(), same.encode()):
                raise ValueError(f"{one} and {other} have the same value; set a different secret for each")
        return self

    @property
    def tokens(self) -> dict[str, SecretStr]:
        """The tokens that are set, by their variables."""
        found = {"ROLECALL_NODE_TOKEN": self.node_token, "ROLECALL_METRICS_TOKEN": self.metrics_token}
        return {name: secret for name, secret in found.items() if secret is not None}
