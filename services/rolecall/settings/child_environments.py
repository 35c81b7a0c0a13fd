"""The environments of the programs that a program starts, without the secrets that they don't need."""

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from rolecall.settings.private_paths import PRIVATE_PATHS, private_paths
from rolecall.settings.secrets import SECRETS

_MASTERS_OWN = ("ROLECALL_TOKEN", "ROLECALL_DATABASE_URL")
_EXPORTS = (
    "OTEL_EXPORTER_OTLP_",
    "ROLECALL_MLFLOW_URI",
    "DATABRICKS_",
    *(f"MLFLOW_TRACKING_{name}" for name in ("USERNAME", "PASSWORD", "TOKEN", "CLIENT_CERT_PATH")),
)
"""The beginnings of variables for the control program's exports that may hold secrets, or name files with them."""
_TUNABLES = "GLIBC_TUNABLES"
_HEAP = "glibc.malloc.arena_max=1:glibc.malloc.tcache_count=0"


def without(environment: Mapping[str, str], hidden: Collection[str], private: Iterable[Path] = ()) -> dict[str, str]:
    """`environment` for another program, without the variables `hidden`.

    The paths that they name stay private, and those in `private` become so.
    """
    kept = {name: value for name, value in environment.items() if name not in hidden}
    return kept | {PRIVATE_PATHS: json.dumps([str(path) for path in (*private_paths(environment), *private)])}


def for_nodes(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without the secrets that only the control program needs, for a node in the same container."""
    hidden = {variable for name in _MASTERS_OWN for variable in (name, f"{name}_FILE")}
    return without(environment, hidden.union(_of_exports(environment)))


def for_workers(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without any secrets."""
    hidden = {variable for name in SECRETS for variable in (name, f"{name}_FILE")}
    return without(environment, hidden.union(_of_exports(environment)))


def heap_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variable for a program whose forks allocate tensors. It keeps the options in `environment`.

    All threads share one heap. By default, a thread frees memory into a heap of its own, where it stays with this
    thread. The threads also have no caches of small blocks. With an alignment, as for tensors, the library splits small
    blocks from the sides of a large one. While they are in a cache or in use, the freed large block is a few bytes too
    small for the next tensor of the same size (https://sourceware.org/bugzilla/show_bug.cgi?id=14581, seen with version
    2.36), so the heap grows. Other C libraries than GNU's ignore the variable.
    """
    given = environment.get(_TUNABLES, "").removeprefix(_HEAP).removeprefix(":")  # A parent may have set it.
    return {_TUNABLES: f"{_HEAP}:{given}" if given else _HEAP}


def _of_exports(environment: Mapping[str, str]) -> set[str]:
    return {name for name in environment if name.startswith(_EXPORTS)}
