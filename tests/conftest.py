# pyright: standard
"""A real cluster (`rolecall local` on a free port, its data folder its own), rows to train on, a private PostgreSQL."""

import gc
import logging
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from types import MappingProxyType
from typing import Any

import httpx
import psutil
import psycopg
import pytest
from hypothesis import settings
from tests.ports import free_port
from tests.prerequisites import require_programs, unavailable
from tests.rows import write_rows
from tests.running import Running
from typer import main, testing
from xdist.scheduler import LoadScopeScheduling

TOKEN = "a-token-for-the-tests-only-and-long"
ROLECALL = (sys.executable, "-m", "rolecall.cli")
START_S = 200
ROOT = Path(__file__).parent.parent
# The wall clock says nothing of an example's cost on a machine that runs other tests at the same time.
settings.register_profile("tests", deadline=None)
settings.register_profile("thorough", deadline=None, derandomize=False, max_examples=200, print_blob=True)
settings.load_profile("tests")
# A shell's background has its programs ignore Ctrl-C, and theirs after them: ours shall obey it wherever tests run.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Before torch is imported. Several test processes share the cores, and threads of OpenMP wait for one another busily:
# then the products of small matrices take ten times as long. Workers are forked from a process with this value, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Imports make objects that stay. To search them for garbage takes a third of the time of collecting the tests.
gc.disable()


_GROUPS = {
    "docker": ("tests/deploy/test_containers", "tests/deploy/test_hosts", "tests/deploy/test_postgres"),
    "namespaces": ("tests/deploy/test_k8s", "tests/deploy/test_quickstart", "tests/cluster/test_preflight"),
    "loops in C": (
        "tests/kit/native/",
        "tests/kit/parameter_server/",
        "tests/kit/test_flat",
        "tests/workloads/reinforce/test_algorithms",
        "tests/workloads/reinforce/test_backward",
    ),
    "PostgreSQL": ("tests/master/test_store", "tests/master/test_database"),
}
"""Files that share what a machine has once, such as names of containers and addresses, or costly session fixtures
and caches."""
_CLUSTERS = {"cluster", "start_cluster"}
_LONGEST = ("tests/numerics", "docker", "tests/cluster", "namespaces")
"""The first have no limits of time: meanwhile, `.ci/run` builds the images."""


def is_thorough() -> bool:
    """True if a developer has chosen many random examples with `--hypothesis-profile=thorough`."""
    return settings.get_current_profile_name() == "thorough"


class ByGroup(LoadScopeScheduling):
    """With several processes, a file's tests stay in one of them, for their fixtures."""

    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of async tests is the one of the programs."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def one_command_line() -> Iterator[None]:
    """Builds the tree of all commands once, instead of for each command that a test runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "_get_command", cache(main.get_command))
        yield


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """Undoes a test's `log_to_stderr`, so that later tests capture the same records in any order."""
    root, library = logging.getLogger(), logging.getLogger("httpx")
    levels = root.level, library.level
    yield
    root.setLevel(levels[0])
    library.setLevel(levels[1])
    for handler in [one for one in root.handlers if type(one) is logging.StreamHandler]:
        root.removeHandler(handler)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup:
    """pytest-xdist's hook."""
    return ByGroup(config, log)


_ALL_SLOW = ("\npytestmark = pytest.mark.slow\n", "\npytestmark = [pytest.mark.slow,")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files whose tests are all slow are not imported for the fast tests, nor are the packages that they test with."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    return any(one in collection_path.read_text() for one in _ALL_SLOW) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a cluster are slow. The longest groups come early."""
    for item in items:
        if _CLUSTERS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
    items.sort(
        key=lambda item: next((n for n, start in enumerate(_LONGEST) if _group(item.nodeid).startswith(start)), 99)
    )


def pytest_collection_finish() -> None:
    """Excludes what the tests import, torch above all, from each later collection of garbage.

    The little garbage that they leave stays, because to search for it takes longer than to keep it.
    """
    gc.freeze()
    gc.set_threshold(20_000)  # Instead of 700: few objects of a test outlive it.
    gc.enable()


def _group(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return next((group for group, files in _GROUPS.items() if file.startswith(files)), file)


@dataclass
class Cluster(Running):
    """A running `rolecall local`."""

    process: subprocess.Popen[str]
    url: str
    data: Path
    client: httpx.Client
    token: str = TOKEN

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which a shell reaches it."""
        return os.environ | {"ROLECALL_URL": self.url, "ROLECALL_TOKEN": self.token}

    @property
    def pids(self) -> dict[str, int]:
        """The process of each program, by name; restarted ones have new ids."""
        children = {child.pid: child.cmdline()[-1] for child in psutil.Process(self.process.pid).children()}
        locks = {path.parent.name: path.read_text().strip() for path in self.data.glob("nodes/*/node.lock")}
        nodes = {name: int(pid) for name, pid in locks.items() if pid and int(pid) in children}
        return nodes | {program: pid for pid, program in children.items() if program == "master"}

    def pid(self, name: str) -> int:
        """The process of one program, for example `master` or `trainer-0`."""
        return self.pids[name]

    def logs(self) -> str:
        """The end of every program's log."""
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in (self.data / "logs").iterdir())


@contextmanager
def running_cluster(
    data: Path, *options: str, environment: Mapping[str, str] = MappingProxyType({})
) -> Generator[Cluster]:
    """Start a cluster, `environment` added to its own; when left, end it and assert that nothing of it still runs."""
    whole = {
        **os.environ,
        "ROLECALL_TOKEN": TOKEN,
        "XDG_CONFIG_HOME": str(data / "config"),
        "ROLECALL_DATA_ROOTS": f"{gettempdir()}:{ROOT}",
        **environment,
    }
    command = [*ROLECALL, "local", "--port", "0", "--data", str(data), *options]
    with (data / "local.log").open("wb") as log:
        process = subprocess.Popen(command, env=whole, stdout=subprocess.PIPE, stderr=log, text=True)
    family: list[psutil.Process] = []
    try:
        url = _await_ready(process, data / "local.log")
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30) as client:
            yield Cluster(process, url, data, client)
    finally:
        if process.poll() is None:
            family = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        _, alive = psutil.wait_procs(family, timeout=5)
        assert not alive, f"still running: {alive}"


@pytest.fixture(scope="session", autouse=True)
def data_roots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Lets jobs read what tests write, and the examples."""
    roots = f"{tmp_path_factory.getbasetemp()}:{ROOT / 'examples'}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLECALL_DATA_ROOTS", roots)
        yield


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that tests share and leave as they found it."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(autouse=True)
def cancel_leftover_jobs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Cancel the jobs that a test leaves in a shared cluster, so that the next tests don't wait for their slots."""
    yield
    for shared in request.node.funcargs.values():
        if isinstance(shared, Running):
            shared.cancel_all()


@pytest.fixture
def start_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Starts a cluster for one test that harms it; takes the arguments of `running_cluster`."""
    with ExitStack() as stack:
        yield lambda *options, **given: stack.enter_context(running_cluster(tmp_path, *options, **given))


@pytest.fixture(scope="session")
def compiled_loops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of loops in C, as a build of the package compiles it: that of `make setup`, if it is current."""
    folder = ROOT / "services/rolecall/kit/native"
    built = folder / "libnative.so"
    if built.exists() and built.stat().st_mtime > max(source.stat().st_mtime for source in folder.glob("*.[ch]")):
        return built
    from hatch_build import compile_loops  # Machines that only run jobs lack what it imports.

    require_programs("cc")
    path = tmp_path_factory.mktemp("native") / "libnative.so"
    compile_loops(["cc"], folder, path)
    return path


@pytest.fixture
def without_loops(tmp_path: Path) -> Iterator[None]:
    """As if the package was built without a C compiler."""
    from rolecall.kit.native import library  # Most tests don't need torch.

    library.load(tmp_path / "none")
    yield
    library.load(library.LIBRARY)


@pytest.fixture(scope="module", params=["torch", "native"])
def implementation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Lets torch compute, then the loops in C."""
    from rolecall.kit.native import library  # Most tests don't need torch.

    is_native = request.param == "native"
    library.load(request.getfixturevalue("compiled_loops") if is_native else tmp_path_factory.mktemp("empty") / "none")
    assert library.is_available() == is_native
    yield request.param
    library.load(library.LIBRARY)


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV file of 6000 rows, for `tests.cluster.jobs`."""
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.csv", rows=6000)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a real server of our own, with an empty database; gone after the tests."""
    binaries, account = _binaries(), _account()
    folder = Path(mkdtemp(prefix="rolecall-postgres-", dir="/tmp"))
    if account:
        shutil.chown(folder, account["user"], account["group"])  # type: ignore[call-overload]
    port = free_port()
    options = f"-c port={port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"

    def run(*command: str | Path) -> None:
        # Its output goes nowhere: the server inherits a pipe and would keep it open.
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/"}
        subprocess.run(command, check=True, **quiet, **account)  # type: ignore[call-overload]

    control = [binaries / "pg_ctl", "-D", folder / "data", "-w"]
    try:
        run(binaries / "initdb", "-D", folder / "data", "-U", "test", "-A", "trust")
        run(*control, "-o", options, "-l", folder / "log", "start")
        try:
            yield f"postgresql://test@127.0.0.1:{port}/postgres"
        finally:
            run(*control, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def database_url(postgres_url: str) -> Iterator[str]:
    """The URL of an empty database of one test's own, on that server."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
        yield f"{postgres_url.rpartition('/')[0]}/{name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[arg-type]


def _await_ready(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout
    readable, _, _ = select.select([process.stdout], [], [], START_S)
    line = process.stdout.readline() if readable else ""
    assert line.startswith("ready "), f"the cluster did not start: {log.read_text()}"
    return line.split()[1]


def _binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found:
        unavailable("PostgreSQL is not installed: there is no /usr/lib/postgresql/*/bin (apt-get install postgresql)")
    return found[-1].parent


def _account() -> dict[str, object]:
    """PostgreSQL refuses to run as root: then it runs as `postgres` or `nobody`."""
    if os.getuid() != 0:
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = known.get("postgres") or known["nobody"]
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
