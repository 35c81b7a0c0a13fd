"""The connections that show a token to the network, and the local cluster that a command finds."""

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from socket import AF_INET

import psutil
import pytest

from rolecall.client import ConfigurationError, Unauthorized, Unreachable
from rolecall.client.connection import Connection, announced, find, running, write_secret


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the connection files of this test."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("ROLECALL_TOKEN", "ROLECALL_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "config/rolecall"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder for the folders of clusters."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def local(token: str, data: Path = Path()) -> Connection:
    """A cluster of `rolecall local` with a port of its own."""
    return Connection(f"http://127.0.0.1:{sum(token.encode())}", token, data=str(data))


@contextmanager
def started_last(cluster: Connection) -> Generator[None]:
    """Stores a cluster as a later one than others, whatever the resolution of times in the file system is."""
    with announced(cluster) as path:
        later_ns = path.stat().st_mtime_ns + 10**9
        os.utime(path, ns=(later_ns, later_ns))
        yield


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://192.0.2.1:8080", True),
        ("http://[2001:db8::1]:8080", True),
        ("https://192.0.2.1:8080", False),
        ("http://127.0.0.1:8080", False),
        ("http://127.1.2.3", False),
        ("http://[::1]:8080", False),
        ("http://localhost:8080", False),
        ("http://no-such-host.invalid", False),
        ("http://[::1", False),
        ("192.0.2.1:8080", False),
    ],
)
def test_a_connection_is_exposed_when_it_leaves_the_machine_in_clear_text(url: str, expected: bool) -> None:
    assert Connection(url, "token").is_exposed() is expected


def test_the_cluster_that_started_before_is_found_again(config: Path, work: Path) -> None:
    with announced(local("first", work / "first")):
        with started_last(local("second", work / "second")):
            assert find(None, None) == local("second")
            assert find(local("first").url, None) == local("first"), "the URL alone names a local cluster"
        assert find(None, None) == local("first")
    assert running() == []
    with pytest.raises(Unreachable, match="no cluster of `rolecall local` is running"):
        find(None, None)


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        ("mine", "mine"),
        ("mine/below", "mine"),
        ("mine/nested/below", "nested"),
        ("mine/.rolecall", "mine"),
        ("other", "last"),
        ("", "last"),
    ],
)
def test_the_cluster_of_the_current_folder_wins_over_the_last_one(
    config: Path, work: Path, monkeypatch: pytest.MonkeyPatch, here: str, expected: str
) -> None:
    for folder in (here, "mine/.rolecall", "mine/nested/.rolecall"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(work / here)
    nested, mine = local("nested", work / "mine/nested/.rolecall"), local("mine", work / "mine/.rolecall")
    with announced(nested), announced(mine), started_last(local("last", work / "elsewhere/.rolecall")):
        found = find(None, None)
        assert (found.token, bool(found.guess)) == (expected, expected == "last")
        with_token = find(None, "given")
        assert (with_token.url, with_token.token) == (found.url, "given")
        assert with_token.guess == found.guess
        assert not find(found.url, None).guess, "the user names it"
        assert find("http://192.0.2.1:8080", "given").url == "http://192.0.2.1:8080"


def test_only_a_cluster_among_several_is_a_guess(config: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with announced(local("one", work / "elsewhere/one")):
        assert not find(None, None).guess
        monkeypatch.chdir(work)
        with announced(local("a", work / "a")), started_last(local("b", work / "b")):
            found = find(None, None)
            assert (found.token, bool(found.guess)) == ("b", True), "both belong to the current folder"


def test_a_killed_cluster_is_not_found(config: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    with announced(local("killed", work / ".rolecall")) as path:
        left = path.read_bytes()
    path.write_bytes(left)
    with announced(local("running", work / "elsewhere/.rolecall")):
        found = find(None, None)
        assert (found.token, found.guess) == ("running", "")
    with pytest.raises(Unreachable):
        find(None, None)
    with announced(local("started-again", work / ".rolecall")) as again:
        assert (again, find(None, None).token) == (path, "started-again")


@pytest.mark.parametrize("content", ["", "[1]", "1", "null", '{"url": 1}', '{"url": "http://a"}', "[" * 10_000])
def test_a_connection_file_that_is_damaged_is_named(config: Path, work: Path, content: str) -> None:
    with announced(local("running", work / ".rolecall")) as path:
        path.write_text(content)
        with pytest.raises(ConfigurationError, match=re.escape(str(path))):
            find(None, None)


def test_what_is_no_file_is_no_connection_file(config: Path, work: Path) -> None:
    with announced(local("running", work / ".rolecall")) as path:
        os.mkfifo(path.with_name("local-pipe.json"))
        path.with_name("local-folder.json").mkdir()
        assert [one.token for one in running()] == ["running"]


def test_a_secret_is_written_where_a_killed_process_with_the_same_id_left_one(config: Path, work: Path) -> None:
    with announced(local("running", work / ".rolecall")) as path:
        path.with_name(f".{path.name}.{os.getpid()}").write_text("left")
        write_secret(path, "new")
        assert path.read_text() == "new"


def test_the_folder_of_a_cluster_that_has_ended_is_named(
    config: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "ended/.rolecall/master").mkdir(parents=True)
    (work / "ended/below").mkdir()
    monkeypatch.chdir(work / "ended/below")
    with announced(local("only", work / "elsewhere/.rolecall")):
        assert find(None, None).guess == f"because the cluster of {work}/ended/.rolecall isn't running"
        with announced(local("other", work / "ended/data")):
            assert (find(None, None).token, bool(find(None, None).guess)) == ("other", True)
        with announced(local("near", work / "ended/below/data")):
            assert (find(None, None).token, find(None, None).guess) == ("near", "")
    with announced(local("again", work / "ended/.rolecall")):
        assert find(None, None).guess == ""
    with pytest.raises(
        Unreachable, match=f"{work}/ended/.rolecall isn't running; .* start it with .* in {work}/ended,"
    ):
        find(None, None)


def test_a_removed_current_folder_leaves_the_last_cluster(
    config: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = work / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with announced(local("first", work / "first")), started_last(local("second", work / "second")):
        assert find(None, None).token == "second"


def test_the_machine_s_own_addresses_are_not_exposed() -> None:
    own = [one.address for some in psutil.net_if_addrs().values() for one in some if one.family == AF_INET]
    assert not [address for address in own if Connection(f"http://{address}:8080", "token").is_exposed()]


@pytest.mark.parametrize("url", ["http://localhost:8080", "http://LOCALHOST:8080/", "http://[::1]:8080"])
def test_the_stored_token_is_found_by_every_loopback_name(url: str, config: Path) -> None:
    with announced(Connection("http://127.0.0.1:8080", "token")):
        assert find(url, None) == Connection("http://127.0.0.1:8080", "token")


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:8081",
        "https://localhost:8080",
        "http://127.0.0.2:8080",
        "http://192.0.2.1:8080",
        "http://localhost.example:8080",
        "http://localhost:8080@192.0.2.1",
    ],
)
def test_the_stored_token_is_for_no_other_master(url: str, config: Path) -> None:
    with announced(Connection("http://127.0.0.1:8080", "token")), pytest.raises(Unauthorized):
        find(url, None)
