"""What a worker may touch. It restricts itself by Landlock before any code of a job or of a plug-in runs.

A worker reads the system's software, Python's environment, the operator's data roots and plug-ins; it writes its own
scratch folder, the node's cache and a few devices. Everything else is refused with `PermissionError`: above all the
node's and the master's data, secrets, and the work folders of other jobs. Processes that it starts inherit the
restriction. A seccomp filter adds what Landlock does not cover: other processes' limits, owners, extended attributes.

Two things need no rule. The kernel lets a restricted process look into the memory, environment and open files (below
`/proc/PID`) of its own children only, so that `/proc` can be allowed as a whole. And what was open before stays open.
"""

import logging
import os
import site
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from rolecall import landlock, seccomp
from rolecall.edge.logs import about
from rolecall.landlock import DEVICE, LIST, READ, SCRATCH, WRITE, Access
from rolecall.process import keep_capabilities
from rolecall.runtime.blobs import make_job_folder
from rolecall.settings import WorkerSettings, read_library_paths
from rolecall.spec.errors import SandboxUnavailable
from rolecall.spec.fork import ForkRequest
from rolecall.spec.workdir import Workdir

Rule = tuple[Path, Access]

_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/proc", "/sys")
# Of /etc what libraries look up, and nothing that may hold a secret.
_ETC = (
    "ImageMagick-6", "OpenCL", "X11", "alternatives", "ca-certificates", "ca-certificates.conf", "drirc", "egl",
    "fonts", "gai.conf", "glvnd", "group", "host.conf", "hostname", "hosts", "inputrc", "krb5.conf", "ld.so.cache",
    "ld.so.conf", "ld.so.conf.d", "libibverbs.d", "libnl-3", "locale.alias", "locale.conf", "localtime", "machine-id",
    "magic", "magic.mime", "matplotlibrc", "mime.types", "nccl.conf", "networks", "nsswitch.conf", "os-release",
    "passwd", "pki/ca-trust", "pki/tls/cert.pem", "pki/tls/certs", "pki/tls/openssl.cnf", "protocols", "rdma",
    "resolv.conf", "services", "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone", "vulkan", "xdg",
)  # fmt: skip
_DEVICES = ("dri", "full", "gdrdrv", "infiniband", "kfd", "null", "random", "urandom", "zero")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - loader processes and NCCL exchange data there
_NEVER = (Path("/run"),)
_TOKENS = ("token", "stored_tokens")
"""What `huggingface-cli login` leaves in `HF_HOME`."""
_CACHES = {
    "XDG_CACHE_HOME": "cache",
    "XDG_CONFIG_HOME": "config",
    "XDG_RUNTIME_DIR": "runtime",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
}
"""Where libraries keep what they compile or fetch: in the worker's own folder. What one job compiles must not run in
another."""
_CAPABILITIES = (0, 1, 2, 3, 14, 23, 24)
"""What root keeps in a worker: `CHOWN`, `DAC_OVERRIDE`, `DAC_READ_SEARCH`, `FOWNER`, `IPC_LOCK` (RDMA), `SYS_NICE`,
`SYS_RESOURCE`. Others lead around the sandbox: with `PERFMON` a process reads the environment of any other."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The rules that this process lives under; none where it is not restricted."""

    rules: Sequence[Rule] = ()

    def hint(self, error: BaseException) -> str:
        """What to add to an error's message if it was the sandbox that refused a path, else nothing."""
        path = _refused(error)
        if path is None or not self.rules or self._may_write(path) or not _open_but_for_us(path):
            return ""
        return (
            f"; the sandbox keeps workers from {path}: add its folder to ROLECALL_DATA_ROOTS (data) or "
            "ROLECALL_PLUGINS (code) to let them read it, write below $TMPDIR, or set ROLECALL_SANDBOX=off on this node"
        )

    def _may_write(self, path: Path) -> bool:
        return any(path.is_relative_to(root.resolve()) for root, access in self.rules if access in (WRITE, SCRATCH))


def confine(request: ForkRequest, settings: WorkerSettings) -> Sandbox:
    """Restrict this process to what the worker needs, and give it folders of its own for temporary files.

    Must come before the process has a second thread. Raises `SandboxUnavailable` where the operator requires a sandbox
    and the kernel has none.
    """
    workdir = Workdir(request.workdir)
    workdir.scratch.mkdir(exist_ok=True)
    _use_own_folders(Path(request.env.get("TMPDIR", workdir.scratch)))
    if settings.sandbox == "off":
        return Sandbox()
    rules = list(rules_of(request, settings))
    try:
        landlock.restrict(rules)
        keep_capabilities(_CAPABILITIES)
    except OSError as error:
        if settings.sandbox == "required":
            raise SandboxUnavailable(f"ROLECALL_SANDBOX=required, and the kernel refuses Landlock: {error}") from error
        _LOG.warning("this worker runs without a sandbox: %s", error, extra=about("sandbox_unavailable"))
        return Sandbox()
    try:
        seccomp.restrict()
    except OSError as error:
        _LOG.warning("this worker's sandbox has no system call filter: %s", error, extra=about("seccomp_unavailable"))
    return Sandbox(rules)


def rules_of(request: ForkRequest, settings: WorkerSettings) -> Iterator[Rule]:
    """Each path with what a worker may do there."""
    data = request.cache.parent
    yield from _SYSTEM
    yield from ((path, DEVICE) for path in Path("/dev").glob("nvidia*"))  # Some come with the driver's first use.
    libraries = [path.resolve() for path in read_library_paths()]
    readable = [*libraries, *(path.resolve() for path in (*settings.plugins, *settings.data_roots))]
    tokens = [path / name for path in libraries for name in _TOKENS if (path / name).exists()]
    for path in dict.fromkeys((*_SOFTWARE, *readable)):
        yield from _except(path, (data.resolve(), *_NEVER, *tokens))
    yield _SHARED_MEMORY, WRITE
    # What the worker tells its node goes through files that were opened before (see `worker.outputs`).
    yield request.workdir, READ
    yield Workdir(request.workdir).scratch, SCRATCH
    yield request.cache, WRITE
    if request.trust is not None and request.trust.ca != "system":
        yield Path(request.trust.ca).resolve(), READ
    url = request.launch.blob_url
    if url and (folder := _local_blobs(url, request.launch.job)):
        yield folder, WRITE


def _use_own_folders(scratch: Path) -> None:
    os.environ["TMPDIR"] = str(scratch)
    tempfile.tempdir = None  # What the fork server's imports found is no longer true.
    os.environ.update({name: str(scratch / folder) for name, folder in _CACHES.items()})


def _system() -> Iterator[Rule]:
    yield from ((Path("/etc", name), READ) for name in _ETC)
    yield Path("/dev"), LIST
    yield from ((Path("/dev", name), DEVICE) for name in _DEVICES)


def _python() -> Iterator[Path]:
    """Where this Python finds code; the folder of the whole system or of a user's home is not meant by that.

    Nor is the folder where the node was started, for which an empty entry stands.
    """
    homes = {Path("/"), Path.home()}
    known = [*sys.path, sys.prefix, sys.base_prefix, sys.exec_prefix, site.getusersitepackages(), *_editable()]
    yield from (path for path in (Path(one).resolve() for one in known if one) if path not in homes)


def _editable() -> Iterator[str]:
    """Folders of packages in development, which setuptools maps by finders of its own."""
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):
            yield from getattr(module, "MAPPING", {}).values()


def _except(path: Path, hidden: Iterable[Path]) -> Iterator[Rule]:
    """Rules for all that lies at and below `path`, but for what is hidden.

    A rule can only allow, and allows a whole tree. So where something below is hidden, each of its neighbours gets a
    rule of its own, and the folder may be listed.
    """
    if path in hidden or not path.exists():
        return
    if not any(one.is_relative_to(path) for one in hidden):
        yield path, READ
        return
    yield path, LIST
    for child in path.iterdir():
        if not child.is_symlink():
            yield from _except(child, hidden)


def _local_blobs(url: str, job: str) -> Path | None:
    """The job's own folder, where the blob store is a file system. It is made now: a rule is for what exists."""
    files, root = url_to_fs(url)
    if not isinstance(files, LocalFileSystem):
        return None
    folder = Path(root, job)
    make_job_folder(folder)
    return folder


def _open_but_for_us(path: Path) -> bool:
    """Whether the file's mode would let this user read it, or make it: the sandbox has no part in `access`."""
    return os.access(path, os.R_OK) or os.access(path.parent, os.W_OK)


def _refused(error: BaseException | None) -> Path | None:
    """The path that a `PermissionError` in the chain of causes is about."""
    while error is not None:
        if isinstance(error, PermissionError) and isinstance(error.filename, str | bytes | os.PathLike):
            return Path(os.fsdecode(error.filename)).resolve()
        error = error.__cause__ or error.__context__
    return None


# What is the same for all workers of a node is found out once, when the fork server imports this.
_SYSTEM: tuple[Rule, ...] = tuple(rule for rule in _system() if rule[0].exists())
_SOFTWARE: tuple[Path, ...] = tuple(dict.fromkeys((*(Path(path).resolve() for path in _FOLDERS), *_python())))
