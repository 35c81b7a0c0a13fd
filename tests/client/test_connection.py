"""Which connections show a token to the network."""

from socket import AF_INET

import psutil
import pytest

from rolecall.client.connection import Connection


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


def test_the_machine_s_own_addresses_are_not_exposed() -> None:
    own = [one.address for some in psutil.net_if_addrs().values() for one in some if one.family == AF_INET]
    assert not [address for address in own if Connection(f"http://{address}:8080", "token").is_exposed()]
