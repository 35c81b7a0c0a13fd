"""The settings of a node's daemon."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rolecall.settings.environment import read
from rolecall.settings.program import ProgramSettings
from rolecall.settings.secrets import read_secret, secrets_from_files
from rolecall.settings.worker import read_worker
from rolecall.spec.errors import SettingsError
from rolecall.spec.role import Role
from rolecall.spec.trust import Trust


class NodeSettings(ProgramSettings):
    """Settings of a node's daemon."""

    role: Annotated[Role, Field(validation_alias="ROLE")]
    """Role of the node's workers."""
    master_addr: Annotated[str, Field(validation_alias="MASTER_ADDR")]
    """Host name or address of the master."""
    port: Annotated[int, Field(validation_alias="ROLECALL_PORT", ge=1, le=65535)] = 8080
    """Port of the master's HTTP server."""
    tls_ca: Annotated[str | None, Field(validation_alias="ROLECALL_TLS_CA")] = None
    """PEM file of the CA that signed the master's certificate, or `system`; if set, the node uses HTTPS."""
    tls_name: Annotated[str | None, Field(validation_alias="ROLECALL_TLS_NAME")] = None
    """Host name in the master's certificate; by default `MASTER_ADDR`."""
    name: Annotated[str | None, Field(validation_alias="ROLECALL_NODE_NAME")] = None
    """Name of the node; by default the host name."""
    slots: Annotated[int | None, Field(validation_alias="ROLECALL_SLOTS", ge=1)] = None
    """Maximum number of workers at a time; by default as many as the machine has capacity for."""
    cpu_slots: Annotated[int | None, Field(validation_alias="ROLECALL_CPU_SLOTS", ge=1)] = None
    """Number of equal shares into which the machine's cores are divided; by default one per core."""
    workers_per_gpu: Annotated[int, Field(validation_alias="ROLECALL_WORKERS_PER_GPU", ge=1, le=64)] = 1
    """Number of workers that can use one of the machine's GPUs at the same time; set it equally on its nodes."""
    metrics_port: Annotated[int, Field(validation_alias="ROLECALL_METRICS_PORT", ge=0, le=65535)] = 9100
    """Port on which the node serves `/metrics` and `/healthz`; 0 selects a free port."""
    worker_timeout_s: Annotated[float, Field(validation_alias="ROLECALL_WORKER_TIMEOUT_S", gt=0)] = 30.0
    """Seconds of silence after which a worker counts as hung, unless a signal has stopped it."""
    fence_s: Annotated[float, Field(validation_alias="ROLECALL_FENCE_S", gt=0)] = 60.0
    """Seconds without a network path to the master, or of its refusals, after which a node ends its workers."""

    @property
    def known_name(self) -> str:
        """The name. Raises `SettingsError` before it is known."""
        if self.name is None:
            raise SettingsError("the node has no name yet")
        return self.name

    @property
    def home(self) -> Path:
        """This node's own folder; other nodes may share the data folder, and the caches in it."""
        return self.data / "nodes" / self.known_name

    @property
    def caches(self) -> Path:
        """The folder with a cache of prepared inputs for each owner of jobs."""
        return self.data / "caches"

    @property
    def master_url(self) -> str:
        """The URL of the control program."""
        host = f"[{self.master_addr}]" if ":" in self.master_addr else self.master_addr
        return f"{'http' if self.tls_ca is None else 'https'}://{host}:{self.port}"

    @property
    def trust(self) -> Trust | None:
        """The verification of the master's certificate; None for plain HTTP."""
        return None if self.tls_ca is None else Trust(ca=self.tls_ca, name=self.tls_name)


def read_node(**given: Any) -> NodeSettings:
    """A node's settings; `given` values win over the environment. Also checks the settings of its workers."""
    settings = read(NodeSettings, {**secrets_from_files(), **given})
    read_worker()
    return settings


def read_node_token() -> str:
    """The nodes' current token from its file or variable. The file can change after the start."""
    return read_secret("ROLECALL_NODE_TOKEN")


def read_scrape_tokens() -> tuple[str, str]:
    """The current tokens of this node for its own `/metrics`; empty ones are not set."""
    return read_node_token(), read_secret("ROLECALL_METRICS_TOKEN")
