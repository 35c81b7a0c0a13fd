"""The only reader of the container's environment.

Each secret may come from a variable or, with `_FILE` appended to its name, from a file.
"""

import hmac
import json
import os
import stat
from collections.abc import Collection, Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, ByteSize, Field, IPvAnyNetwork, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from rolecall.spec.errors import SettingsError
from rolecall.spec.role import Role
from rolecall.spec.trust import Trust

_S = TypeVar("_S", bound="_Environment")
SECRETS = ("ROLECALL_TOKEN", "ROLECALL_NODE_TOKEN", "ROLECALL_METRICS_TOKEN", "ROLECALL_DATABASE_URL")
"""Variables that hold secrets, each of which may also be read from a file. No worker gets to see them."""

_SECRET_FILES = (
    *(f"{name}_FILE" for name in SECRETS),
    "ROLECALL_TLS_KEY",
    "OTEL_EXPORTER_OTLP_CLIENT_KEY",
    "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
    "MLFLOW_TRACKING_CLIENT_CERT_PATH",
)
_PRIVATE_PATHS = "ROLECALL_PRIVATE_PATHS"
"""A variable that Rolecall sets for the programs that it starts: the private paths of its own environment, as JSON."""
_MASTERS_OWN = ("ROLECALL_TOKEN", "ROLECALL_DATABASE_URL")
_EXPORTS = (
    "OTEL_EXPORTER_OTLP_",
    "ROLECALL_MLFLOW_URI",
    "DATABRICKS_",
    *(f"MLFLOW_TRACKING_{name}" for name in ("USERNAME", "PASSWORD", "TOKEN", "CLIENT_CERT_PATH")),
)
"""The beginnings of variables for the control program's exports that may hold secrets, or name files with them."""
_LIBRARY_PATHS = (
    "AWS_CA_BUNDLE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_FEDERATED_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "HF_HOME",
    "LD_LIBRARY_PATH",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TORCH_HOME",
)
_DATA_ROOTS = (Path("/data"), Path("/opt/rolecall/examples"))


def _paths(given: Any) -> Any:
    return [part for part in given.split(":") if part] if isinstance(given, str) else given


def _names(given: Any) -> Any:
    return [part.strip() for part in given.split(",") if part.strip()] if isinstance(given, str) else given


class _Environment(BaseSettings):
    model_config = SettingsConfigDict(
        frozen=True, extra="ignore", populate_by_name=True, env_ignore_empty=True, use_attribute_docstrings=True
    )

    data: Annotated[Path, Field(validation_alias="ROLECALL_DATA")] = Path("/var/lib/rolecall")
    """Folder for all persistent data: database, blobs, logs, caches."""
    log_format: Annotated[Literal["text", "json"], Field(validation_alias="ROLECALL_LOG_FORMAT")] = "text"
    """Log format: text, or json with one object a line and the fields event, job, attempt, rank and node."""


class WorkerSettings(_Environment):
    """Settings of workers: which code and which data a job may name."""

    plugins: Annotated[
        tuple[Path, ...], NoDecode, BeforeValidator(_paths), Field(validation_alias="ROLECALL_PLUGINS")
    ] = ()
    """Colon-separated folders with Python modules that jobs may name: builders of models, environments, wrappers."""
    builders: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(_names), Field(validation_alias="ROLECALL_BUILDERS")
    ] = ()
    """Comma-separated installed packages whose functions and classes jobs may name."""
    data_roots: Annotated[
        tuple[Path, ...], NoDecode, BeforeValidator(_paths), Field(validation_alias="ROLECALL_DATA_ROOTS")
    ] = _DATA_ROOTS
    """Colon-separated folders whose files jobs may read; by default `/data` and the shipped examples."""
    data_schemes: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(_names), Field(validation_alias="ROLECALL_DATA_SCHEMES")
    ] = ()
    """Comma-separated URL schemes that jobs may read data from, such as `s3,gs`; none by default."""
    sandbox: Annotated[Literal["auto", "required", "off"], Field(validation_alias="ROLECALL_SANDBOX")] = "auto"
    """Landlock sandbox for workers: `auto` (if the kernel has it), `required` (else the node is unfit) or `off`."""
    cache_bytes: Annotated[ByteSize, Field(validation_alias="ROLECALL_CACHE_BYTES")] = ByteSize(10 << 30)
    """Size above which a node evicts the least recently used prepared inputs, such as `10GiB`; 0 for no limit."""


class _Settings(_Environment):
    node_token: Annotated[SecretStr, Field(validation_alias="ROLECALL_NODE_TOKEN", min_length=16)]
    """The token with which nodes authenticate to the master; in the master, the built-in token `node`."""
    metrics_token: Annotated[SecretStr | None, Field(validation_alias="ROLECALL_METRICS_TOKEN", min_length=16)] = None
    """The token for Prometheus, which gives access only to `GET /metrics` of master and nodes."""
    host: Annotated[str, Field(validation_alias="ROLECALL_HOST")] = "0.0.0.0"  # noqa: S104 - a container's port is its interface
    """Address that the program's HTTP server binds."""
    log_level: Annotated[str, Field(validation_alias="ROLECALL_LOG_LEVEL", pattern="^(debug|info|warning|error)$")] = (
        "info"
    )
    """Log level: debug, info, warning or error."""
    log_bytes: Annotated[int, Field(validation_alias="ROLECALL_LOG_BYTES", ge=1 << 20)] = 64 << 20
    """Bytes kept of each worker's log: one half from its beginning, one from its end; the rest is dropped."""
    stop_grace_s: Annotated[float, Field(validation_alias="ROLECALL_STOP_GRACE_S", ge=0)] = 30.0
    """Seconds that workers have to stop before they are killed; the master waits for them equally long."""

    @model_validator(mode="after")
    def _refuse_equal_tokens(self) -> "_Settings":
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


class MasterSettings(_Settings):
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
    max_job_bytes: Annotated[ByteSize | None, Field(validation_alias="ROLECALL_MAX_JOB_BYTES")] = None
    """Maximum size of a job's data in the blob store, such as `100GiB`; no limit by default."""
    reserve_bytes: Annotated[ByteSize | None, Field(validation_alias="ROLECALL_RESERVE_BYTES")] = None
    """Free space on the data volume below which the master refuses logs and uploads; by default 5 %, at most 2 GiB."""

    webhook_hosts: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(_names), Field(validation_alias="ROLECALL_WEBHOOK_HOSTS")
    ] = ()
    """Comma-separated hosts that may get webhooks, such as `hooks.example.com,*.example.org:8443`; none by default."""
    webhook_networks: Annotated[
        tuple[IPvAnyNetwork, ...],
        NoDecode,
        BeforeValidator(_names),
        Field(validation_alias="ROLECALL_WEBHOOK_NETWORKS"),
    ] = ()
    """Comma-separated private networks of these hosts, such as `10.1.0.0/16`; by default only public addresses."""
    otlp_endpoint: Annotated[
        str | None, Field(validation_alias="OTEL_EXPORTER_OTLP_ENDPOINT", pattern=r"^https?://[^/]")
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


class NodeSettings(_Settings):
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


def read_node_token() -> str:
    """The nodes' current token from its file or variable. The file can change after the start."""
    return _read_secret("ROLECALL_NODE_TOKEN")


def read_scrape_tokens() -> tuple[str, str]:
    """The current tokens of this node for its own `/metrics`; empty ones are not set."""
    return read_node_token(), _read_secret("ROLECALL_METRICS_TOKEN")


def _read_secret(variable: str) -> str:
    return _secrets_from_files().get(variable) or os.environ.get(variable, "")


def readable_secret_files(*others: Path) -> tuple[Path, ...]:
    """The files with secrets that every user of this system can read.

    Examines the files that the environment names, the connection file, and `others`.
    """
    known = dict.fromkeys((*private_paths(), connection_file(), *others))
    return tuple(path for path in known if _is_world_readable(path))


def connection_file(environment: Mapping[str, str] = os.environ) -> Path:
    """The file in which `rolecall local` stores its address and token for the other commands."""
    base = environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(base, "rolecall", "local.json")


def private_paths(environment: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """The paths that jobs may never read: the folder of the connection file, and the files with secrets.

    They include those of the parent programs, whose variables `environment` may lack.
    """
    inherited = map(Path, json.loads(environment.get(_PRIVATE_PATHS) or "[]"))
    found = (connection_file(environment).parent, *_secret_files(environment), *inherited)
    return tuple(dict.fromkeys(path.absolute() for path in found))


def without(environment: Mapping[str, str], hidden: Collection[str], private: Iterable[Path] = ()) -> dict[str, str]:
    """`environment` for another program, without the variables `hidden`.

    The paths that they name stay private, and those in `private` become so.
    """
    kept = {name: value for name, value in environment.items() if name not in hidden}
    return kept | {_PRIVATE_PATHS: json.dumps([str(path) for path in (*private_paths(environment), *private)])}


def for_nodes(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without the secrets that only the control program needs, for a node in the same container."""
    hidden = {variable for name in _MASTERS_OWN for variable in (name, f"{name}_FILE")}
    return without(environment, hidden.union(_of_exports(environment)))


def for_workers(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without any secrets."""
    hidden = {variable for name in SECRETS for variable in (name, f"{name}_FILE")}
    return without(environment, hidden.union(_of_exports(environment)))


def _of_exports(environment: Mapping[str, str]) -> set[str]:
    return {name for name in environment if name.startswith(_EXPORTS)}


def read_role() -> str:
    """The container's `ROLE`, or a `SettingsError` that lists the legal ones."""
    role = os.environ.get("ROLE", "")
    if role not in set(Role):
        given = f"ROLE={role!r} is unknown" if role else "ROLE is not set"
        raise SettingsError(f"{given}; set it to one of: {', '.join(Role)}")
    return role


def read_master(**given: Any) -> MasterSettings:
    """The control program's settings; `given` values win over the environment."""
    return _read(MasterSettings, {**_secrets_from_files(), **given})


def read_node(**given: Any) -> NodeSettings:
    """A node's settings; `given` values win over the environment."""
    return _read(NodeSettings, {**_secrets_from_files(), **given})


def read_worker() -> WorkerSettings:
    """The settings of workers: code and data for jobs, sandbox and cache."""
    return _read(WorkerSettings, {})


def read_log_format() -> Literal["text", "json"]:
    return _read(_Environment, {}).log_format


def read_library_paths() -> tuple[Path, ...]:
    """Files and folders in variables of the workers' libraries, which have to read them."""
    return tuple(Path(part) for name in _LIBRARY_PATHS for part in os.environ.get(name, "").split(":") if part)


def _secret_files(environment: Mapping[str, str]) -> tuple[Path, ...]:
    return tuple(Path(path) for name in _SECRET_FILES if (path := environment.get(name)))


def _is_world_readable(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & stat.S_IROTH)


def _read(kind: type[_S], given: dict[str, Any]) -> _S:
    try:
        return kind(**given)
    except ValidationError as error:
        raise SettingsError("; ".join(_explain(problem) for problem in error.errors())) from None


def _secrets_from_files() -> dict[str, str]:
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


def _explain(problem: Any) -> str:
    if not problem["loc"]:
        return str(problem["msg"]).removeprefix("Value error, ")
    name = str(problem["loc"][0])
    if problem["type"] == "missing":
        return f"{name} is not set; set it, or {name}_FILE" if name in SECRETS else f"{name} is not set"
    return f"{name}: {problem['msg']}"
