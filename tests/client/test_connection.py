"""The connections that show a token to the network."""

import socket
from pathlib import Path
from socket import AF_INET

import psutil
import pytest

from rolecall.client import Unauthorized
from rolecall.client.connection import Connection, find, forget, store, stored


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


def test_the_cluster_that_was_stored_before_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        first = Connection(f"http://127.0.0.1:{listener.getsockname()[1]}", "first")
        second = Connection("http://127.0.0.1:1", "second")
        for running in (True, False):
            store(first)
            earlier = stored()
            store(second)
            if not running:
                listener.close()
            forget(second, earlier)
            assert stored() == (first if running else None)
    store(first)
    forget(second, None)
    assert stored() == first, "another cluster has been stored since"


def test_the_machine_s_own_addresses_are_not_exposed() -> None:
    own = [one.address for some in psutil.net_if_addrs().values() for one in some if one.family == AF_INET]
    assert not [address for address in own if Connection(f"http://{address}:8080", "token").is_exposed()]


@pytest.mark.parametrize("url", ["http://localhost:8080", "http://LOCALHOST:8080/", "http://[::1]:8080"])
def test_the_stored_token_is_found_by_every_loopback_name(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("ROLECALL_TOKEN_FILE", raising=False)
    store(Connection("http://127.0.0.1:8080", "token"))
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
def test_the_stored_token_is_for_no_other_master(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("ROLECALL_TOKEN_FILE", raising=False)
    store(Connection("http://127.0.0.1:8080", "token"))
    with pytest.raises(Unauthorized):
        find(url, None)
