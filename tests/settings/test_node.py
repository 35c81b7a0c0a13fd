import pytest
from tests.settings.conftest import TOKENS

from rolecall.settings.node import read_node
from rolecall.spec.role import Role


def test_a_node_knows_its_master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECALL_NODE_TOKEN", TOKENS["ROLECALL_NODE_TOKEN"])
    monkeypatch.setenv("ROLE", "parameter-server")
    monkeypatch.setenv("MASTER_ADDR", "master.example")
    read = read_node()
    assert read.role is Role.PARAMETER_SERVER
    assert read.master_url == "http://master.example:8080"


def test_a_masters_ipv6_address_stands_in_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECALL_NODE_TOKEN", TOKENS["ROLECALL_NODE_TOKEN"])
    monkeypatch.setenv("ROLE", "trainer")
    monkeypatch.setenv("MASTER_ADDR", "fd00::7")
    assert read_node().master_url == "http://[fd00::7]:8080"
