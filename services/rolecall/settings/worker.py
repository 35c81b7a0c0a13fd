"""The settings of workers."""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, ByteSize, Field
from pydantic_settings import NoDecode

from rolecall.settings.environment import SharedSettings, Size, names, paths, read

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


class WorkerSettings(SharedSettings):
    """Settings of workers: which code and which data a job may name."""

    plugins: Annotated[
        tuple[Path, ...], NoDecode, BeforeValidator(paths), Field(validation_alias="ROLECALL_PLUGINS")
    ] = ()
    """Colon-separated folders with Python modules that jobs may name: builders of models, environments, wrappers."""
    builders: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(names), Field(validation_alias="ROLECALL_BUILDERS")
    ] = ()
    """Comma-separated modules and packages, installed or on `PYTHONPATH`, that define what jobs may name."""
    data_roots: Annotated[
        tuple[Path, ...], NoDecode, BeforeValidator(paths), Field(validation_alias="ROLECALL_DATA_ROOTS")
    ] = _DATA_ROOTS
    """Colon-separated folders whose files jobs may read; by default `/data` and the shipped examples."""
    data_schemes: Annotated[
        tuple[str, ...], NoDecode, BeforeValidator(names), Field(validation_alias="ROLECALL_DATA_SCHEMES")
    ] = ()
    """Comma-separated URL schemes that jobs may read data from, such as `s3,gs`; none by default."""
    sandbox: Annotated[Literal["auto", "required", "off"], Field(validation_alias="ROLECALL_SANDBOX")] = "auto"
    """Landlock sandbox for workers: `auto` (if the kernel has it), `required` (else the node is unfit) or `off`."""
    cache_bytes: Annotated[Size, Field(validation_alias="ROLECALL_CACHE_BYTES")] = ByteSize(10 << 30)
    """Size above which a node evicts the least recently used prepared inputs, such as `10GiB`; 0 for no limit."""


def read_worker() -> WorkerSettings:
    """The settings of workers: code and data for jobs, sandbox and cache."""
    return read(WorkerSettings, {})


def read_library_paths() -> tuple[Path, ...]:
    """Files and folders in variables of the workers' libraries, which have to read them."""
    return tuple(Path(part) for name in _LIBRARY_PATHS for part in os.environ.get(name, "").split(":") if part)
