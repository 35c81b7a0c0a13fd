"""The name of a node by default."""

import socket
from types import SimpleNamespace

import psutil
import pytest

from rolecall.node.name import node_name
from rolecall.spec.errors import SettingsError


def test_the_chosen_name_counts() -> None:
    assert node_name("trainer-7") == "trainer-7"


def test_without_one_it_is_the_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Worker-3.example")
    assert node_name(None) == "worker-3.example"


def test_a_containers_id_stays_where_no_name_server_knows_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "1a9fabdef4c2")
    own = SimpleNamespace(family=socket.AF_INET, address="192.0.2.1")
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": [own]})
    assert node_name(None) == "1a9fabdef4c2"


@pytest.mark.parametrize("name", ["Not Legal", "-x", "x" * 64])
def test_an_illegal_name_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="valid are up to 63"):
        node_name(name)
