import pytest
from tests.settings.conftest import TOKENS

from rolecall.settings.node import read_node
from rolecall.spec.errors import SettingsError
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


def test_the_valid_roles_are_listed_if_a_node_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECALL_NODE_TOKEN", TOKENS["ROLECALL_NODE_TOKEN"])
    monkeypatch.setenv("MASTER_ADDR", "master.example")
    with pytest.raises(SettingsError, match=r"^ROLE is not set; set it to one of: master, parameter-server, trainer"):
        read_node()
    monkeypatch.setenv("ROLE", "traner")
    with pytest.raises(
        SettingsError, match=r"^ROLE: 'traner' is not a valid value; did you mean 'trainer'\? \(valid: "
    ):
        read_node()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ROLECALL_SANDBOX", "on", "'on' is not a valid value (valid: auto, required, off)"),
        (
            "ROLECALL_CACHE_BYTES",
            "lots",
            "'lots' is not a valid value (valid: a number of bytes, or a size such as 100GiB)",
        ),
    ],
)
def test_a_node_checks_the_settings_of_its_workers_at_start(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv("ROLECALL_NODE_TOKEN", TOKENS["ROLECALL_NODE_TOKEN"])
    monkeypatch.setenv("ROLE", "trainer")
    monkeypatch.setenv("MASTER_ADDR", "master.example")
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        read_node()
    assert str(caught.value) == f"{name}: {said}"
