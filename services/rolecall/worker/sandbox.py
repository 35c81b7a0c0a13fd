"""The sandbox of a worker, which restricts itself by Landlock before any code of a job or of a plug-in runs.

A worker reads the system's software, Python's environment, the operator's data roots and plug-ins. It writes its own
scratch folder, the owner's cache and a few devices. Everything else is refused with `PermissionError`, for example data
of the node and the master, secrets, and the work folders of other jobs. Child processes inherit the restriction. A
seccomp filter covers what Landlock does not: limits of other processes, owners, extended attributes, System V IPC.

`/proc` can be allowed as a whole, because the kernel lets a restricted process read the memory, environment and open
files (below `/proc/PID`) of its own children only. Open files need no rule.
"""

import logging
import os
import site
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rolecall import landlock, seccomp
from rolecall.landlock import DEVICE, LIST, READ, SCRATCH, WRITE, AccessRights
from rolecall.logs import about
from rolecall.process import keep_capabilities
from rolecall.runtime.blobs import make_local_folder
from rolecall.settings.private_paths import private_paths
from rolecall.settings.worker import WorkerSettings, read_library_paths
from rolecall.spec.errors import SandboxUnavailable
from rolecall.spec.fork import ForkRequest
from rolecall.spec.shared_memory import SHARED_MEMORY
from rolecall.spec.workdir import Workdir

Rule = tuple[Path, AccessRights]

_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/proc", "/sys")
# The files of /etc that libraries read, without those that can contain secrets.
_ETC = (
    "ImageMagick-6", "OpenCL", "X11", "alternatives", "ca-certificates", "ca-certificates.conf", "drirc", "egl",
    "fonts", "gai.conf", "glvnd", "group", "host.conf", "hostname", "hosts", "inputrc", "krb5.conf", "ld.so.cache",
    "ld.so.conf", "ld.so.conf.d", "libibverbs.d", "libnl-3", "locale.alias", "locale.conf", "localtime", "machine-id",
    "magic", "magic.mime", "matplotlibrc", "mime.types", "nccl.conf", "networks", "nsswitch.conf", "os-release",
    "passwd", "pki/ca-trust", "pki/tls/cert.pem", "pki/tls/certs", "pki/tls/openssl.cnf", "protocols", "rdma",
    "resolv.conf", "services", "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone", "vulkan", "xdg",
)  # fmt: skip
_DEVICES = ("dri", "full", "gdrdrv", "infiniband", "kfd", "null", "random", "urandom", "zero")
_NEVER = (Path("/run"),)
_TOKENS = ("token", "stored_tokens")
"""The files of `huggingface-cli login` in `HF_HOME`."""
_CACHES = {
    "XDG_CACHE_HOME": "cache",
    "XDG_CONFIG_HOME": "config",
    "XDG_RUNTIME_DIR": "runtime",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
}
"""The caches of libraries, in the worker's own folder, so that code that one job compiles can't run in another."""
_CAPABILITIES = (0, 1, 2, 3, 14, 23, 24)
"""The capabilities of root in a worker: `CHOWN`, `DAC_OVERRIDE`, `DAC_READ_SEARCH`, `FOWNER`, `IPC_LOCK` (RDMA),
`SYS_NICE`, `SYS_RESOURCE`. Others would bypass the sandbox: `PERFMON` allows reading the environment of any process."""
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The rules of this process; none if it is not restricted."""

    rules: Sequence[Rule] = ()

    def hint(self, error: BaseException) -> str:
        """A hint for the message of an error if the sandbox refused a path, else empty."""
        path = _refused(error)
        if path is None or not self.rules:
            return ""
        is_writable = any(
            path.is_relative_to(root.resolve()) for root, access in self.rules if access in (WRITE, SCRATCH)
        )
        # The sandbox doesn't affect `access`: this is the mode of the file, or of the folder for a new file.
        is_permitted = os.access(path, os.R_OK) or os.access(path.parent, os.W_OK)
        if is_writable or not is_permitted:
            return ""
        return (
            f"; the sandbox keeps workers from {path}: add its folder to ROLECALL_DATA_ROOTS (data) or "
            "ROLECALL_PLUGINS (code) to let them read it, write below $TMPDIR, or set ROLECALL_SANDBOX=off on this node"
        )


def confine(request: ForkRequest, settings: WorkerSettings) -> Sandbox:
    """Restrict this process to the rights of a worker, and set its own folders for temporary files.

    Call it while the process has a single thread. Raises `SandboxUnavailable` if the operator requires a sandbox and
    the kernel has none.
    """
    workdir = Workdir(request.workdir)
    workdir.scratch.mkdir(exist_ok=True)
    scratch = request.env.get("TMPDIR", str(workdir.scratch))
    os.environ["TMPDIR"] = scratch
    os.environ.update({name: f"{scratch}/{folder}" for name, folder in _CACHES.items()})
    tempfile.tempdir = None  # The imports of the fork server can have set another folder.
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
    """The paths with the worker's access rights."""
    data = (request.data or request.cache.parent).resolve()
    yield from _SYSTEM
    yield from ((path, DEVICE) for path in Path("/dev").glob("nvidia*"))  # The driver creates some on first use.
    libraries = [path.resolve() for path in read_library_paths()]
    plugins = [path.resolve() for path in settings.plugins]
    private = [path.resolve() for path in private_paths()]
    tokens = [path / name for path in libraries for name in _TOKENS if (path / name).exists()]
    roots = [path.resolve() for path in settings.data_roots]
    roots = [root for root in roots if not any(root.is_relative_to(path) for path in private)]
    for path in dict.fromkeys((*_SOFTWARE, *libraries, *plugins, *roots)):
        yield from _except(path, (data, *_NEVER, *private, *tokens))
    yield SHARED_MEMORY, WRITE  # Loader processes, NCCL and workers exchange data there.
    # The worker writes only to files that were opened before (see `worker.outputs`).
    yield request.workdir, READ
    yield Workdir(request.workdir).scratch, SCRATCH
    yield request.cache, WRITE
    if request.trust is not None and request.trust.ca != "system":
        yield Path(request.trust.ca).resolve(), READ
    if request.launch.blob_url:
        folder = make_local_folder(request.launch.blob_url, request.launch.job)  # Rules need existing paths.
        if folder is not None:
            yield folder, WRITE


def _python() -> Iterator[Path]:
    """The folders of Python's code, without the root folder, the user's home, and the node's working directory.

    The working directory is an empty entry.
    """
    homes = {Path("/"), Path.home()}
    known = [*sys.path, sys.prefix, sys.base_prefix, sys.exec_prefix, site.getusersitepackages(), *_editable()]
    yield from (path for path in (Path(one).resolve() for one in known if one) if path not in homes)


def _editable() -> Iterator[str]:
    """The folders of editable installations, which setuptools maps by its own finders."""
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):
            yield from getattr(module, "MAPPING", {}).values()


def _except(path: Path, hidden: Collection[Path]) -> Iterator[Rule]:
    """Rules for `path` and everything below it except `hidden`.

    A rule allows a whole tree. Therefore, if a path below is hidden, each of its siblings gets a rule, and the folder
    may be listed.
    """
    if path in hidden or not path.exists():
        return
    inside = [one for one in hidden if one.is_relative_to(path)]
    if not inside:
        yield path, READ
        return
    yield path, LIST
    for child in path.iterdir():
        if not child.is_symlink():
            yield from _except(child, inside)


def _refused(error: BaseException | None) -> Path | None:
    """The path of a `PermissionError` in the chain of causes. A job can construct any errors, paths and chains."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, PermissionError):
            with suppress(TypeError):  # Not a path, or none.
                path = os.fsdecode(error.filename)
                return None if "\0" in path else Path(os.path.realpath(path))
        error = error.__cause__ or error.__context__
    return None


# These rules are the same for all workers of a node, and computed once, when the fork server imports this module.
_SYSTEM: tuple[Rule, ...] = tuple(
    (path, access)
    for path, access in (
        *((Path("/etc", name), READ) for name in _ETC),
        (Path("/dev"), LIST),
        *((Path("/dev", name), DEVICE) for name in _DEVICES),
    )
    if path.exists()
)
_SOFTWARE: tuple[Path, ...] = tuple(dict.fromkeys((*(Path(path).resolve() for path in _FOLDERS), *_python())))
