"""The settings of the control program."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, IPvAnyNetwork, SecretStr
from pydantic_settings import NoDecode

from rolecall.settings.environment import Size, names, read
from rolecall.settings.program import ProgramSettings
from rolecall.settings.secrets import secrets_from_files
from rolecall.spec.bounds import matching


class MasterSettings(ProgramSettings):
    """Settings of the control program."""

    token: Annotated[SecretStr, Field(validation_alias="ROLECALL_TOKEN", min_length=16)]
    """The master's built-in token `admin`, which allows everything that users can do."""
    port: Annotated[int, Field(validation_alias="ROLECALL_PORT", ge=0, le=65535)] = 8080
    """Port of the master's HTTP server."""
    database_url: Annotated[SecretStr | None, Field(validation_alias="ROLECALL_DATABASE_URL")] = None
    """Database URL, `postgresql://user:password@host/name`; by default SQLite in the data folder."""
    blob_url: Annotated[str | None, Field(validation_alias="ROLECALL_BLOB_URL")] = None
    """fsspec URL of a blob store that every node can reach; by default the master's data folder."""
    blob_timeout_s: Annotated[float, Field(validation_alias="ROLECALL_BLOB_TIMEOUT_S", gt=0)] = 30.0
    """Seconds after which a call to the blob store counts as hung."""
    tls_cert: Annotated[Path | None, Field(validation_alias="ROLECALL_TLS_CERT")] = None
    """PEM file with the master's certificate chain; if set, the master serves HTTPS only."""
    tls_key: Annotated[Path | None, Field(validation_alias="ROLECALL_TLS_KEY")] = None
    """PEM file with the certificate's private key, without a password."""
    heartbeat_s: Annotated[float, Field(validation_alias="ROLECALL_HEARTBEAT_S", gt=0, le=30)] = 2.0
    """Seconds that the master holds a heartbeat open when nothing changes."""
    node_timeout_s: Annotated[float, Field(validation_alias="ROLECALL_NODE_TIMEOUT_S", gt=0)] = 10.0
    """Seconds without a heartbeat after which a node counts as lost."""
    standby: Annotated[bool, Field(validation_alias="ROLECALL_STANDBY")] = False
    """Wait as a standby while another master leads, and take over when it ends; needs PostgreSQL."""
    backfill_window_s: Annotated[float, Field(validation_alias="ROLECALL_BACKFILL_WINDOW_S", ge=0)] = 60.0
    """Seconds during which other jobs may start before a job that waits for slots."""
    keep_days: Annotated[float, Field(validation_alias="ROLECALL_KEEP_DAYS", ge=0)] = 0.0
    """Days after which an ended job is deleted with all its data; 0 keeps jobs until a user deletes them."""
    keep_checkpoints: Annotated[int, Field(validation_alias="ROLECALL_KEEP_CHECKPOINTS", ge=1)] = 2
    """Number of newest checkpoints kept per job, in addition to one that the workload marks as kept."""
    keep_checkpoint_days: Annotated[float, Field(validation_alias="ROLECALL_KEEP_CHECKPOINT_DAYS", ge=0)] = 7.0
    """Days after which the checkpoints of a succeeded job are deleted; 0 keeps them as long as the job."""
    keep_audit_days: Annotated[float, Field(validation_alias="ROLECALL_KEEP_AUDIT_DAYS", ge=0)] = 365.0
    """Days after which an audit log entry is deleted; 0 keeps all entries."""
    max_job_bytes: Annotated[Size | None, Field(validation_alias="ROLECALL_MAX_JOB_BYTES")] = None
    """Maximum size of a job's data in the blob store, such as `100GiB`; no limit by default."""
    reserve_bytes: Annotated[Size | None, Field(validation_alias="ROLECALL_RESERVE_BYTES")] = None
    """Free space on the data volume below which the master refuses logs and uploads; by default 5 %, at most 2 GiB."""

    webhook_hosts: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(names), Field(validation_alias="ROLECALL_WEBHOOK_HOSTS")
    ] = ()
    """Comma-separated hosts that may get webhooks, such as `hooks.example.com,*.example.org:8443`; none by default."""
    webhook_networks: Annotated[
        tuple[IPvAnyNetwork, ...],
        NoDecode,
        BeforeValidator(names),
        Field(validation_alias="ROLECALL_WEBHOOK_NETWORKS"),
    ] = ()
    """Comma-separated private networks of these hosts, such as `10.1.0.0/16`; by default only public addresses."""
    otlp_endpoint: Annotated[
        str | None,
        Field(validation_alias="OTEL_EXPORTER_OTLP_ENDPOINT"),
        matching(r"^https?://[^/]", "an http or https URL, such as http://collector:4318"),
    ] = None
    """URL of an OpenTelemetry collector (OTLP over HTTP) for job traces, such as `http://collector:4318`."""
    mlflow_uri: Annotated[SecretStr | None, Field(validation_alias="ROLECALL_MLFLOW_URI")] = None
    """MLflow tracking server for all jobs, such as `http://mlflow:5000`."""
    mlflow_experiment: Annotated[str, Field(validation_alias="ROLECALL_MLFLOW_EXPERIMENT")] = "rolecall"
    """MLflow experiment of the jobs, which is created if necessary."""
    tensorboard_dir: Annotated[Path | None, Field(validation_alias="ROLECALL_TENSORBOARD_DIR")] = None
    """Folder for TensorBoard's event files of all jobs."""

    @property
    def sqlite_file(self) -> Path:
        """The SQLite database, which is used without `database_url`."""
        return self.data / "rolecall.db"

    @property
    def database_files(self) -> tuple[Path, ...]:
        """The files with the signing key: the SQLite database and its write-ahead log; none with `database_url`."""
        file = self.sqlite_file
        return () if self.database_url else (file, file.with_name(f"{file.name}-wal"))

    @property
    def tokens(self) -> dict[str, SecretStr]:
        """The tokens that are set, by their variables."""
        return {"ROLECALL_TOKEN": self.token} | super().tokens


def read_master(**given: Any) -> MasterSettings:
    """The control program's settings; `given` values win over the environment."""
    return read(MasterSettings, {**secrets_from_files(), **given})
